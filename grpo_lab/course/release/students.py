"""The folder that students get: the assignments, and one page that says what to do with them."""

from pathlib import Path

from grpo_lab.course.release.assignments import build

README = """\
# Your assignments

One notebook for each lecture notebook: functions to write, each checked at once, and a question to answer in words.

1. Install the package, as its README says (`make lab`, or the steps without make). You need no GPU.
2. Open a notebook of this folder in JupyterLab, with the kernel of that installation.
3. Write a function, run its cell, run the check below it. It says what is not right yet, on the smallest input that
   shows it. `hint("name")` helps, and helps more each time. Neither is counted.
4. Stuck? Go on: every exercise stands by itself. What you have not begun is reported as not started.
5. Hand in the notebooks under their names. Only the functions and your written answers are marked.

What is marked: each function runs on the inputs that the check shows you, and on fresh ones of the same kind. A
function that is right for the right reason passes both. Keep the names and the arguments of the functions; beyond that
write them as you like. Cells that you add are run too, in order, so keep long experiments in another notebook.

Your functions can train a model: in "See your functions at work", those that you have got right take the place of the
library's.
"""


def release(folder: Path) -> list[Path]:
    """Write the students' folder.

    Raises:
        FileExistsError: if there is something in it: no work is ever overwritten.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists and is not empty; name a new folder, nothing was written")
    written = build(folder)
    (folder / "README.md").write_text(README, encoding="utf-8", newline="\n")
    return [*written, folder / "README.md"]
