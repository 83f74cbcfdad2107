"""Find what students handed in, and read it without believing any of it.

A notebook is JSON that a stranger wrote. Whatever is wrong with it becomes a sentence in the report; nothing here
raises for it, and nothing of it is run. What was handed in is graded or listed with a reason, never left out.
"""

import ast
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from grpo_lab.course.grading.files import File, archived, is_notebook, stem, unseen, walk

MAX_CELL, MAX_CELLS, MAX_NOTES = 200_000, 2_000, 20  # characters, cells, files that are said to be left out
SKIPPED_ROLES = {"check", "hint", "demo", "progress", "written"}
METADATA_OF_A_DOWNLOAD = "submission_metadata.yml"  # Gradescope's

# What learning platforms make of names. Moodle: "Ada Lovelace_1234567_assignsubmission_file_", a folder or the
# beginning of a file's name. Canvas: "lovelaceada_LATE_1234_56789_name.ipynb". Gradescope: "submission_12345".
_MOODLE = re.compile(r"(?P<name>.+?)_(?P<id>\d+)_assignsubmission_\w+?_(?P<rest>.*)", re.DOTALL)
_CANVAS = re.compile(r"(?P<name>[^_]+)(?P<late>_LATE)?_(?P<id>\d+)_\d{3,}_(?P<rest>.+)", re.DOTALL)
_GRADESCOPE = re.compile(r"submission_(?P<id>\d+)")


@dataclass(frozen=True)
class Cell:
    """A code cell that is to be run. `number` counts all cells from 1, as a reader does."""

    number: int
    source: str


@dataclass
class Submission:
    """One notebook of one student. `problem` says why it cannot be graded; empty if it can be.

    student: the name that its folder or file has, or that a learning platform gave it; number: the platform's own.
    late: the platform says so. modified: of the file, in seconds since 1970. digest: SHA-256 of the file.
    """

    student: str
    path: Path
    assignment: str = ""
    cells: list[Cell] = field(default_factory=list)
    written: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    notes: list[str] = field(default_factory=list)
    file: str = ""
    number: str = ""
    late: bool = False
    modified: float | None = None
    digest: str = ""

    @property
    def name(self) -> str:
        """Of the file; where there is none, of the entry that should have held one."""
        return self.file or self.path.name


@dataclass(frozen=True)
class Owner:
    """Whose a file is, by the names on its way. `name_of_file` is what the student called it."""

    student: str
    number: str
    late: bool
    name_of_file: str


def find_submissions(folder: Path, assignments: dict[str, tuple[str, ...]]) -> list[Submission]:
    """Every notebook of a class, in a folder or in the zip archive of one, one student an entry.

    An entry is `alice/02_….ipynb`, `alice.ipynb`, `alice.zip`, or has a name that Moodle, Canvas or Gradescope made.
    Of two notebooks for one assignment, the one with the assignment's own file name counts, or else the first by name.

    Args:
        folder: where the submissions lie.
        assignments: stem -> names of its exercises.

    Raises:
        ValueError: if the folder is none, and no zip archive.
    """
    by_student: dict[tuple[str, str], list[tuple[Owner, File]]] = {}
    for file in _files(folder):
        owner = owner_of(file.parts)
        by_student.setdefault((owner.student, owner.number), []).append((owner, file))
    names = _names_of_gradescope(folder)
    found = []
    for (student, number), files in sorted(by_student.items(), key=lambda item: item[0]):
        found += _of_one_student(names.get(student, student), number, files, assignments)
    return found


def _files(folder: Path) -> Iterable[File]:
    if folder.is_file() and folder.suffix.lower() == ".zip":
        yield from _of_the_class(list(archived(folder, (folder.name,))))
        return
    if not folder.is_dir():
        raise ValueError(f"folder is {folder}; expected a folder of submissions, or a zip archive of one")
    for entry in sorted(folder.iterdir(), key=lambda p: p.name):
        if entry.name == METADATA_OF_A_DOWNLOAD or unseen(entry.name):
            continue
        if entry.is_dir() and not entry.is_symlink() and not any(entry.iterdir()):
            yield File((entry.name, ""), entry, bytes)
        yield from walk(entry)


def _of_the_class(files: list[File]) -> list[File]:
    """The archive stands for the class, and so does a single folder in it that holds a folder for each student."""
    depth = 1
    while files and min(len(file.parts) for file in files) > depth + 2 and len({f.parts[depth] for f in files}) == 1:
        depth += 1
    return [File(file.parts[depth:] or file.parts, file.path, file.read, file.modified) for file in files]


def owner_of(parts: tuple[str, ...]) -> Owner:
    """Whose a file is: by a name that a learning platform made, or else by its outermost folder, or its own name."""
    first, file = parts[0], parts[-1]
    own = stem(first) if len(parts) == 1 or first == file else first
    if match := _MOODLE.fullmatch(first) or _MOODLE.fullmatch(own + "_"):
        name_of_file = match["rest"] if len(parts) == 1 else file
        return Owner(match["name"].strip(), match["id"], False, name_of_file or file)
    if match := _CANVAS.fullmatch(first):
        return Owner(match["name"], match["id"], bool(match["late"]), match["rest"] if len(parts) == 1 else file)
    if match := _GRADESCOPE.fullmatch(own):
        return Owner(own, match["id"], False, file)
    return Owner(own, "", False, file)


def _names_of_gradescope(folder: Path) -> dict[str, str]:
    """submission_12345 -> "Ada Lovelace" (or several names), from the list that a Gradescope download has.

    Of its YAML, two kinds of lines are read: `submission_12345:`, and below it `- :name: Ada Lovelace` for each person.
    """
    try:
        lines = (folder / METADATA_OF_A_DOWNLOAD).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError):
        return {}
    found: dict[str, list[str]] = {}
    for line in lines:
        if heading := re.match(r"(submission_\d+):", line):
            people = found.setdefault(heading[1], [])
        elif found and (name := re.match(r"\s*-?\s*:name:\s*(.+)", line)):
            people.append(name[1].strip().strip("'\""))
    return {key: " and ".join(names) for key, names in found.items() if names}


def _of_one_student(student: str, number: str, files: list[tuple[Owner, File]], assignments) -> list[Submission]:
    read, other = [], []
    for owner, file in files:
        if is_notebook(file.name):
            read.append(_read(student, owner, file, assignments))
        else:
            other.append(_why_not(file))
    if not read:
        why = "no notebook (.ipynb)" + (f" ({'; '.join(filter(None, other[:5]))})" if any(other) else "")
        return [Submission(student, files[0][1].path, problem=why, number=number)]
    chosen = _one_of_each(read)
    said = [f"{why}, and was left out" for why in other if why]
    chosen[0].notes += said if len(said) <= MAX_NOTES else [*said[: MAX_NOTES - 1], said[-1]]
    return chosen


def _why_not(file: File) -> str:
    """What is said of a file that is no notebook; "" for the mark of an empty folder."""
    if not file.name:
        return ""
    try:
        file.read()
    except ValueError as error:
        return f"{file.name}: {error}" if str(error) != "no notebook" else f"{file.name} is no notebook"
    return f"{file.name} is no notebook"


def _one_of_each(read: list[Submission]) -> list[Submission]:
    """Two notebooks for one assignment: the one with the assignment's own file name counts, or else the first."""
    chosen: dict[str, Submission] = {}
    rest = []
    for one in sorted(read, key=lambda s: (bool(s.problem), stem(s.file) != s.assignment, s.file)):
        if not one.assignment:
            rest.append(one)
        elif one.assignment in chosen:
            chosen[one.assignment].notes.append(f"{one.file} is for the same assignment and was left out")
        else:
            chosen[one.assignment] = one
    return [*sorted(chosen.values(), key=lambda s: s.assignment), *rest]


def _read(student: str, owner: Owner, file: File, assignments: dict[str, tuple[str, ...]]) -> Submission:
    """The code cells that grading runs, and the written answers."""
    submission = Submission(
        student, file.path, _by_name(stem(owner.name_of_file), assignments),
        file=owner.name_of_file, number=owner.number, late=owner.late, modified=file.modified,
    )  # fmt: skip
    try:
        content = file.read()
        submission.digest = hashlib.sha256(content).hexdigest()
        document = _load(content)
        cells = _cells(document)
        submission.assignment = submission.assignment or _by_content(document, cells, assignments)
        if not submission.assignment:
            raise ValueError("it belongs to no assignment: neither its file name nor its cells say to which")
    except ValueError as error:
        submission.problem = str(error)
        return submission
    _take_cells(submission, cells)
    return submission


def _load(content: bytes) -> dict:
    try:
        document = json.loads(content)  # UTF-8, with a byte order mark or without, and UTF-16
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it cannot be read as a notebook ({type(error).__name__})") from None
    if not isinstance(document, dict) or not isinstance(document.get("cells"), list):
        raise ValueError("it is JSON, and no notebook: it has no list of cells")
    return document


def _cells(document: dict) -> list[dict]:
    cells = document["cells"]
    if len(cells) > MAX_CELLS:
        raise ValueError(f"it has {len(cells)} cells; at most {MAX_CELLS} are read")
    return [cell if isinstance(cell, dict) else {} for cell in cells]


def _by_name(name: str, assignments: dict[str, tuple[str, ...]]) -> str:
    """`02_baselines_and_advantages`, and also `02_baselines_and_advantages (1)` or `02-final`."""
    if name in assignments:
        return name
    match = re.match(r"(\d\d)[_\- .]", name)
    return next((found for found in assignments if match and found.startswith(f"{match[1]}_")), "")


def _by_content(document: dict, cells: list[dict], assignments: dict[str, tuple[str, ...]]) -> str:
    """By what the assignment wrote into the notebook, or else by the functions that it defines."""
    named = _of(_of(document, "metadata"), "grpo_lab").get("assignment")
    if isinstance(named, str) and named in assignments:
        return named
    exercises = {str(mark(cell).get("exercise")) for cell in cells}
    if not any(exercises & set(own) for own in assignments.values()):
        exercises = {name for cell in cells for name in _defined(_source(cell))}
    most = max(assignments, key=lambda name: len(exercises & set(assignments[name])), default="")
    return most if most and exercises & set(assignments[most]) else ""


def _defined(source: str) -> list[str]:
    try:
        return [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def mark(cell: dict) -> dict:
    """What the assignment wrote into the metadata of this cell: {"exercise": ..., "role": ...}, or nothing."""
    return _of(_of(cell, "metadata"), "grpo_lab")


def _of(container: dict, key: str) -> dict:
    value = container.get(key)
    return value if isinstance(value, dict) else {}


def _take_cells(submission: Submission, cells: list[dict]) -> None:
    marks = _marks(submission.assignment, cells)
    for number, (cell, its) in enumerate(zip(cells, marks, strict=True), 1):
        source, role = _source(cell), its.get("role")
        if role == "written" and cell.get("cell_type") == "markdown":
            submission.written[str(its.get("question", number))[:80]] = source[:20_000]
        if (
            cell.get("cell_type") != "code"
            or not source.strip()
            or (role in SKIPPED_ROLES and not _helps(role, source))
        ):
            continue
        if len(source) > MAX_CELL:
            submission.notes.append(f"cell {number} has {len(source):,} characters and was left out")
            continue
        submission.cells.append(Cell(number, source))


def _helps(role: str, source: str) -> bool:
    """Whether a student wrote something into the cell of a check or a hint that a function may need."""
    if role not in ("check", "hint", "progress"):
        return False
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(not isinstance(statement, ast.Expr) for statement in body)


def _marks(assignment: str, cells: list[dict]) -> list[dict]:
    """The mark of each cell; where an editor dropped them all, those of the assignment's cells of the same text.

    A written answer is then the text cell behind its question.
    """
    marks = [mark(cell) for cell in cells]
    if any(marks):
        return marks
    from grpo_lab.course.release.notebooks import notebook_text

    own = json.loads(notebook_text(assignment[:2]))["cells"]
    by_text = {_source(cell).strip(): mark(cell) for cell in own}
    marks = [by_text.get(_source(cell).strip(), {}) for cell in cells]
    for index, before in enumerate(marks[:-1]):
        if before.get("role") == "question" and cells[index + 1].get("cell_type") == "markdown":
            marks[index + 1] = {"role": "written", "question": before.get("question")}
    return marks


def _source(cell: dict) -> str:
    source = cell.get("source", "")
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    return source if isinstance(source, str) else ""
