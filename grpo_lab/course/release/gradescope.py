"""Write an autograder for Gradescope: a folder, and a zip archive of it to upload.

    python -m grpo_lab.course export-gradescope DIR     writes DIR and DIR.zip

The folder contains the package. `setup.sh` installs it with the versions of `requirements.lock`. `run_autograder`
grades one submission by the command `grade` and writes `results.json`. The submission runs in bubblewrap if
Gradescope's container allows it, and else as another user. No other tool is needed.
"""

import shlex
import shutil
from pathlib import Path

import grpo_lab
from grpo_lab.course.exercises import find_assignment
from grpo_lab.course.release.notebooks import refuse_unless_new
from grpo_lab.course.variant import ClassKey

CHECKOUT = Path(grpo_lab.__file__).resolve().parents[1]
PACKAGE_PARTS = ("pyproject.toml", "setup.py", "requirements.lock", "README.md", "LICENSE", "grpo_lab")

SETUP = """\
#!/usr/bin/env bash
# Run once, when Gradescope builds the image.
set -euo pipefail
root="${AUTOGRADER_ROOT:-/autograder}"
package="$root/source/package"
export DEBIAN_FRONTEND=noninteractive

apt-get update
apt-get install -y python3 python3-venv
apt-get install -y bubblewrap || true  # the sandbox for submissions, if the container allows it
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "setup.sh: python3 is $(python3 --version); expected 3.11 or newer: choose the image Ubuntu 24.04" >&2
    exit 1
fi
python3 -m venv "$root/venv"
python="$root/venv/bin/python"
"$python" -m pip install uv
# Gradescope has no GPU, and the build of torch for CPUs is some gigabytes smaller. If it cannot be installed, the
# package installs the ordinary one.
"$python" -m uv pip install --python "$python" --torch-backend=cpu -c "$package/requirements.lock" torch ||
    echo "setup.sh: no build of torch for CPUs is available; the ordinary one is installed"
"$python" -m pip install -c "$package/requirements.lock" "${package}[math]"
# Without bubblewrap, submissions run as another user, who can read neither this folder nor the answers.
chmod -R go-rwx "$root/source" "$("$python" -c 'import grpo_lab; print(grpo_lab.__path__[0])')"
"$python" -c 'import sys, torch; print("installed: Python", sys.version.split()[0], "torch", torch.__version__)'
"""

RUN_AUTOGRADER = """\
#!/usr/bin/env bash
# Run for each submission. Its files are in submission/, and the points are written to results/results.json.
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


def export_gradescope(folder: Path, seed: int, number: str | None = None, key: ClassKey | None = None) -> Path:
    """Write the folder of the autograder and its zip archive, and return the path of the archive.

    Args:
        folder: The folder to write, new or empty.
        seed: The seed of the inputs that students have not seen.
        number: The number of the assignment, such as "02"; notebooks for another one earn nothing. None grades
            whatever is handed in.
        key: The key of a class that has variants. The autograder contains the secret and the file of formulas, in a
            place that submissions cannot read.

    Raises:
        FileExistsError: If the folder is not empty, or a zip archive of its name exists.
        ValueError: If there is no such assignment.
        FileNotFoundError: If the package is installed without its checkout.
    """
    if number is not None:
        find_assignment(number)  # raises an error if there is none
    refuse_unless_new(folder)
    archive = folder.with_name(f"{folder.name}.zip")
    if archive.exists():
        raise FileExistsError(f"folder is {folder}, and {archive.name} is there already; nothing was written")
    if missing := [part for part in PACKAGE_PARTS if not (CHECKOUT / part).exists()]:
        raise FileNotFoundError(f"an autograder contains the package, and {missing[0]} is missing: use a checkout")
    folder.mkdir(parents=True, exist_ok=True)
    for part in PACKAGE_PARTS:
        target = folder / "package" / part
        if (CHECKOUT / part).is_dir():
            shutil.copytree(CHECKOUT / part, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(CHECKOUT / part, target)
    variant_option = ""
    if key:
        variant_option = f' --variant {shlex.quote(key.secret)} --variants "$root/source/variants.yaml"'
        shutil.copyfile(key.file, folder / "variants.yaml")
    assignment_option = f" --assignment {number}" if number else ""
    script = RUN_AUTOGRADER.format(seed=seed, assignment=assignment_option, variant=variant_option)
    for name, text in (("setup.sh", SETUP), ("run_autograder", script)):
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
        (folder / name).chmod(0o755)
    return Path(shutil.make_archive(str(folder), "zip", folder))
