"""Find what students handed in, and read it without believing any of it.

A notebook is JSON that a stranger wrote. Whatever is wrong with it becomes a sentence in the report; nothing here
raises for it, and nothing of it is run.
"""

import json
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

MAX_NOTEBOOK, MAX_CELL, MAX_CELLS = 32_000_000, 200_000, 2_000  # bytes, characters, cells
SKIPPED_ROLES = {"check", "hint", "demo", "progress", "written"}


@dataclass(frozen=True)
class Cell:
    """A code cell that is to be run. `number` counts all cells from 1, as a reader does."""

    number: int
    source: str


@dataclass
class Submission:
    """One notebook of one student. `problem` says why it cannot be graded; empty if it can be."""

    student: str
    path: Path
    assignment: str = ""
    cells: list[Cell] = field(default_factory=list)
    written: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    notes: list[str] = field(default_factory=list)


def find_submissions(folder: Path, assignments: dict[str, tuple[str, ...]]) -> list[Submission]:
    """Every notebook under the folder: `alice/02_….ipynb` or `alice.ipynb`, one student a folder or file.

    Args:
        folder: where the submissions lie.
        assignments: stem -> names of its exercises.

    Raises:
        ValueError: if the folder is none.
    """
    if not folder.is_dir():
        raise ValueError(f"folder is {folder}; expected a folder of submissions")
    found = []
    for entry in sorted(folder.iterdir(), key=lambda p: p.name):
        if entry.name.startswith("."):
            continue
        if entry.is_symlink():
            found.append(Submission(entry.stem, entry, problem="a link, not a file or folder; links are not followed"))
        elif entry.is_dir():
            found += _of_one_student(entry, assignments)
        elif entry.suffix == ".ipynb":
            found.append(read_submission(entry.stem, entry, assignments))
    return found


def _of_one_student(folder: Path, assignments: dict[str, tuple[str, ...]]) -> list[Submission]:
    paths = sorted(p for p in _walk(folder) if p.suffix == ".ipynb")
    if not paths:
        return [Submission(folder.name, folder, problem="no notebook (.ipynb) in the folder")]
    return _one_of_each([read_submission(folder.name, path, assignments) for path in paths])


def _walk(folder: Path):
    """Files below the folder, links among them as themselves; hidden folders and checkpoints left out."""
    for entry in sorted(folder.iterdir(), key=lambda p: p.name):
        if entry.name.startswith(".") or entry.name == "__pycache__":
            continue
        if entry.is_dir() and not entry.is_symlink():
            yield from _walk(entry)
        else:
            yield entry


def _one_of_each(read: list[Submission]) -> list[Submission]:
    """Two notebooks for one assignment: the one with the assignment's own file name counts, or else the first."""
    chosen: dict[str, Submission] = {}
    rest = []
    for one in sorted(read, key=lambda s: (s.path.stem != s.assignment, bool(s.problem))):
        if not one.assignment:
            rest.append(one)
        elif one.assignment in chosen:
            chosen[one.assignment].notes.append(f"{one.path.name} is for the same assignment and was left out")
        else:
            chosen[one.assignment] = one
    return [*sorted(chosen.values(), key=lambda s: s.assignment), *rest]


def read_submission(student: str, path: Path, assignments: dict[str, tuple[str, ...]]) -> Submission:
    """The code cells that grading runs, and the written answers."""
    submission = Submission(student, path, assignment=_by_name(path.stem, assignments))
    try:
        document = _load(path)
        cells = _cells(document)
        submission.assignment = submission.assignment or _by_content(document, cells, assignments)
        if not submission.assignment:
            raise ValueError("it belongs to no assignment: neither its file name nor its cells say to which")
    except ValueError as error:
        submission.problem = str(error)
        return submission
    _take_cells(submission, cells)
    return submission


def _load(path: Path) -> dict:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("a link, not a file" if stat.S_ISLNK(status.st_mode) else "no ordinary file")
    if status.st_size > MAX_NOTEBOOK:
        raise ValueError(f"the file has {status.st_size / 1e6:.0f} MB; at most {MAX_NOTEBOOK / 1e6:.0f} MB are read")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise ValueError(f"it cannot be read as a notebook ({type(error).__name__})") from None
    if not isinstance(document, dict) or not isinstance(document.get("cells"), list):
        raise ValueError("it is JSON, and no notebook: it has no list of cells")
    return document


def _cells(document: dict) -> list[dict]:
    cells = document["cells"]
    if len(cells) > MAX_CELLS:
        raise ValueError(f"it has {len(cells)} cells; at most {MAX_CELLS} are read")
    return [cell if isinstance(cell, dict) else {} for cell in cells]


def _by_name(stem: str, assignments: dict[str, tuple[str, ...]]) -> str:
    """`02_baselines_and_advantages`, and also `02_baselines_and_advantages (1)` or `02-final`."""
    if stem in assignments:
        return stem
    match = re.match(r"(\d\d)[_\- .]", stem)
    return next((name for name in assignments if match and name.startswith(f"{match[1]}_")), "")


def _by_content(document: dict, cells: list[dict], assignments: dict[str, tuple[str, ...]]) -> str:
    named = _of(_of(document, "metadata"), "grpo_lab").get("assignment")
    if isinstance(named, str) and named in assignments:
        return named
    exercises = {str(mark(cell).get("exercise")) for cell in cells}
    return next((name for name, own in assignments.items() if exercises & set(own)), "")


def mark(cell: dict) -> dict:
    """What the assignment wrote into the metadata of this cell: {"exercise": ..., "role": ...}, or nothing."""
    return _of(_of(cell, "metadata"), "grpo_lab")


def _of(container: dict, key: str) -> dict:
    value = container.get(key)
    return value if isinstance(value, dict) else {}


def _take_cells(submission: Submission, cells: list[dict]) -> None:
    for number, cell in enumerate(cells, 1):
        source = _source(cell)
        role = mark(cell).get("role")
        if role == "written" and cell.get("cell_type") == "markdown":
            submission.written[str(mark(cell).get("question", number))[:80]] = source[:20_000]
        if cell.get("cell_type") != "code" or role in SKIPPED_ROLES or not source.strip():
            continue
        if len(source) > MAX_CELL:
            submission.notes.append(f"cell {number} has {len(source):,} characters and was left out")
            continue
        submission.cells.append(Cell(number, source))


def _source(cell: dict) -> str:
    source = cell.get("source", "")
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    return source if isinstance(source, str) else ""
