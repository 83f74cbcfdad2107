"""The grading as an autograder for Gradescope: a folder, and the zip of it that is uploaded there.

    python -m grpo_lab.course export-gradescope DIR     writes DIR and DIR.zip

`setup.sh` installs the package, which lies in the folder, with the versions of `requirements.lock`; `run_autograder`
grades one submission as the command `grade` does, in bubblewrap where Gradescope's container allows it, else as another
user, and leaves `results.json`. No other tool is needed.
"""

import shlex
import shutil
from pathlib import Path

import grpo_lab
from grpo_lab.base.checks import InputError
from grpo_lab.course.release.notebooks import of_notebook, refuse_unless_new
from grpo_lab.course.variant import ClassKey

CHECKOUT = Path(grpo_lab.__file__).resolve().parents[1]
PARTS = ("pyproject.toml", "setup.py", "requirements.lock", "README.md", "LICENSE", "grpo_lab")

SETUP = """\
#!/usr/bin/env bash
# Run once, when Gradescope builds the image.
set -euo pipefail
root="${AUTOGRADER_ROOT:-/autograder}"
package="$root/source/package"
export DEBIAN_FRONTEND=noninteractive

apt-get update
apt-get install -y python3 python3-venv
apt-get install -y bubblewrap || true  # a sandbox within the container, where the container allows one
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "setup.sh: python3 is $(python3 --version); expected 3.11 or newer: choose the image Ubuntu 24.04" >&2
    exit 1
fi
python3 -m venv "$root/venv"
python="$root/venv/bin/python"
"$python" -m pip install uv
# No GPU there: the build for CPUs is some gigabytes smaller. Without it, the package brings the ordinary one.
"$python" -m uv pip install --python "$python" --torch-backend=cpu -c "$package/requirements.lock" torch ||
    echo "setup.sh: no build of torch for CPUs is to be had; the ordinary one is installed"
"$python" -m pip install -c "$package/requirements.lock" "${package}[math]"
# Where there is no sandbox within, submissions run as another user, who reads neither this folder nor the answers.
chmod -R go-rwx "$root/source" "$("$python" -c 'import grpo_lab; print(grpo_lab.__path__[0])')"
"$python" -c 'import sys, torch; print("installed: Python", sys.version.split()[0], "torch", torch.__version__)'
"""

RUN = """\
#!/usr/bin/env bash
# Run for each submission: its files lie in submission/, the marks go to results/results.json.
set -euo pipefail
root="${{AUTOGRADER_ROOT:-/autograder}}"
python="${{AUTOGRADER_PYTHON:-/autograder/venv/bin/python}}"
mkdir -p "$root/class" "$root/results"
rm -rf "$root/class/student" "$root/grades"
cp -r "$root/submission" "$root/class/student"
cd "$root"
"$python" -m grpo_lab.course grade "$root/class" --seed {seed}{assignment}{variant} --trust --output "$root/grades"
cp "$root/grades/results.json" "$root/results/results.json"
"""


def export_gradescope(folder: Path, seed: int, assignment: str | None = None, key: ClassKey | None = None) -> Path:
    """Write the folder and its zip; returns the zip.

    Args:
        folder: new, or empty.
        seed: of the inputs that students have not seen.
        assignment: such as "02": whatever else is handed in earns nothing. None takes what comes.
        key: of a class that has variants; the secret and the file go along, where submissions cannot read.

    Raises:
        FileExistsError: if there is something in the folder, or a zip of its name beside it.
        ValueError: for an assignment that there is not.
        FileNotFoundError: where the package is installed without its checkout.
    """
    if assignment is not None and not of_notebook(assignment):
        raise InputError("assignment", assignment, "expected the number of one, such as 02")
    refuse_unless_new(folder)
    archive = folder.with_name(f"{folder.name}.zip")
    if archive.exists():
        raise FileExistsError(f"folder is {folder}, and {archive.name} is there already; nothing was written")
    if missing := [part for part in PARTS if not (CHECKOUT / part).exists()]:
        raise FileNotFoundError(f"an autograder takes the package along, and {missing[0]} is missing: use a checkout")
    folder.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        target = folder / "package" / part
        if (CHECKOUT / part).is_dir():
            shutil.copytree(CHECKOUT / part, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(CHECKOUT / part, target)
    variant = f' --variant {shlex.quote(key.secret)} --variants "$root/source/variants.yaml"' if key else ""
    if key:
        shutil.copyfile(key.file, folder / "variants.yaml")
    run = RUN.format(seed=seed, assignment=f" --assignment {assignment}" if assignment else "", variant=variant)
    for name, text in (("setup.sh", SETUP), ("run_autograder", run)):
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
        (folder / name).chmod(0o755)
    return Path(shutil.make_archive(str(folder), "zip", folder))
