"""The grading as an autograder for Gradescope: a folder, and the zip of it that is uploaded there.

    python -m grpo_lab.course export-gradescope DIR     writes DIR and DIR.zip

`setup.sh` installs the package, which lies in the folder; `run_autograder` grades one submission as the command `grade`
does, behind the walls that stand in Gradescope's container, and leaves `results.json`. No other tool is needed.
"""

import shutil
from pathlib import Path

import grpo_lab
from grpo_lab.course.release.notebooks import refuse_unless_new

CHECKOUT = Path(grpo_lab.__file__).resolve().parents[1]
PARTS = ("pyproject.toml", "README.md", "LICENSE", "grpo_lab")

SETUP = """\
#!/usr/bin/env bash
# Run once, when Gradescope builds the image.
set -euo pipefail
apt-get update && apt-get install -y python3 python3-pip python3-venv
python3 -m venv /autograder/venv
/autograder/venv/bin/pip install /autograder/source/package
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
"$python" -m grpo_lab.course grade "$root/class" --seed {seed} --output "$root/grades" \\
    --results-json "$root/results/results.json"
"""


def export(folder: Path, seed: int) -> Path:
    """Write the folder and its zip; returns the zip.

    Args:
        folder: new, or empty.
        seed: of the inputs that students have not seen.

    Raises:
        FileExistsError: if there is something in the folder, or a zip of its name beside it.
        FileNotFoundError: where the package is installed without its checkout.
    """
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
    for name, text in (("setup.sh", SETUP), ("run_autograder", RUN.format(seed=seed))):
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
        (folder / name).chmod(0o755)
    return Path(shutil.make_archive(str(folder), "zip", folder))
