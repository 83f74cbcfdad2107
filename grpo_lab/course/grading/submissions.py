"""Find what students handed in, and read it without believing any of it.

A notebook is JSON that a stranger wrote. Whatever is wrong with it becomes a sentence in the report; nothing here
raises for it, and nothing of it is run. What was handed in is graded or listed with a reason, never left out.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from grpo_lab.course.grading.answers import written_answers
from grpo_lab.course.grading.downloads import (
    Owner,
    as_listed,
    class_of,
    listed_by_gradescope,
    owner_of,
    without_the_archive,
)
from grpo_lab.course.grading.files import (
    GRADESCOPE_LIST,
    MAX_NOTEBOOKS,
    File,
    archived,
    is_notebook,
    stem,
    unseen,
    walk,
)
from grpo_lab.course.grading.notebook import Cell, assignment_of, by_name, cells_of, load, marks_of, to_run

SAME = "is for the same assignment"
MAX_NOTES = 20  # files that are said to be left out
_AGAIN = re.compile(r"(?P<base>.*?)(?: ?\((?P<browser>\d{1,3})\)|-(?P<canvas>\d{1,2}))?", re.DOTALL)


@dataclass
class Submission:
    """One notebook of one student. `problem` says why it cannot be graded; empty if it can be.

    student: the name that its folder or file has, or that a learning platform gave it; number, email: the platform's
    own. platform: "moodle", "canvas", "gradescope", or "". late: the platform says so. modified: when it was handed in,
    in seconds since 1970: by the file's own date, or, with `dated`, by what the platform wrote down. digest: SHA-256 of
    the file.
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
    email: str = ""
    platform: str = ""
    late: bool = False
    modified: float | None = None
    dated: bool = False
    upload: int = 0
    digest: str = ""

    @property
    def name(self) -> str:
        """Of the file; where there is none, of the entry that should have held one."""
        return self.file or self.path.name


def find_submissions(folder: Path, assignments: dict[str, tuple[str, ...]]) -> list[Submission]:
    """Every notebook of a class, in a folder or in the zip archive of one, one student an entry.

    An entry is `alice/02_….ipynb`, `alice.ipynb`, `alice.zip`, or has a name that Moodle, Canvas or Gradescope made.
    Of two notebooks for one assignment, that with the assignment's own file name counts; of those that differ in what
    a browser or Canvas put behind their name, ` (1)` or `-1`, the last; of others the first by name. Where a platform
    says when each came, the last one counts.

    Args:
        folder: where the submissions lie, or a download of a platform with a folder or an archive around it.
        assignments: stem -> names of its exercises.

    Raises:
        ValueError: if the folder is none, and no zip archive.
    """
    files = class_of(list(_files(folder)))
    lists = [file for file in files if file.parts == (GRADESCOPE_LIST,)]
    listed = listed_by_gradescope(lists)
    by_student: dict[tuple[str, str], list[tuple[Owner, File]]] = {}
    for file in files:
        if file not in lists:
            owner = as_listed(owner_of(file.parts), listed)
            by_student.setdefault((owner.student, owner.number), []).append((owner, file))
    found: list[Submission] = []
    for _, own in sorted(by_student.items(), key=lambda item: item[0]):
        found += _of_one_student(own, assignments)
    return found


def _files(folder: Path) -> Iterable[File]:
    if folder.is_file() and folder.suffix.lower() == ".zip":
        yield from without_the_archive(list(archived(folder, (folder.name,))))
        return
    if not folder.is_dir():
        raise ValueError(f"folder is {folder}; expected a folder of submissions, or a zip archive of one")
    for entry in sorted(folder.iterdir(), key=lambda p: p.name):
        if unseen(entry.name):
            continue
        if _is_empty(entry):
            yield File((entry.name, ""), entry, bytes)
        yield from walk(entry)


def _is_empty(entry: Path) -> bool:
    try:
        return entry.is_dir() and not entry.is_symlink() and not any(entry.iterdir())
    except OSError:  # it may not be looked into: `walk` says so
        return False


def _of_one_student(files: list[tuple[Owner, File]], assignments: dict[str, tuple[str, ...]]) -> list[Submission]:
    read, other = [], []
    for owner, file in files:
        if is_notebook(file.name) and len(read) >= MAX_NOTEBOOKS:
            other.append(f"{file.name}: more than {MAX_NOTEBOOKS} notebooks are not read")
        elif is_notebook(file.name):
            read.append(_read(owner, file, assignments))
        else:
            other.append(_why_not(file))
    if not read:
        why = "no notebook (.ipynb)" + (f" ({'; '.join(filter(None, other[:5]))})" if any(other) else "")
        owner, file = files[0]
        return [Submission(**_of_whom(owner, file) | {"file": "", "problem": why})]
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
    """Of several notebooks for one assignment the one that counts, by the rule of `find_submissions`."""
    chosen: dict[str, Submission] = {}
    rest = []
    for one in sorted(read, key=_comes_first):
        if not one.assignment:
            rest.append(one)
        elif one.assignment in chosen:
            chosen[one.assignment].notes.append(_left_out(one, chosen[one.assignment]))
        else:
            chosen[one.assignment] = one
    return [*sorted(chosen.values(), key=lambda s: s.assignment), *rest]


def _comes_first(one: Submission) -> tuple:
    base, again = _version(one)
    created = -one.modified if one.dated and one.modified else 0
    return bool(one.problem), created, base != one.assignment, -again, -one.upload, one.file


def _version(one: Submission) -> tuple[str, int]:
    """The name without what a browser or, with a new submission of the same name, Canvas puts behind it; and that."""
    match = _AGAIN.fullmatch(stem(one.file))
    return match["base"], int(match["browser"] or match["canvas"] or 0)


def _left_out(one: Submission, chosen: Submission) -> str:
    later = one.modified is not None and chosen.modified is not None and one.modified > chosen.modified + 1
    doubts = ["cannot be read"] * bool(one.problem) + ["has the later date"] * later
    return f"{one.file} {SAME}" + f", {' and '.join(doubts)}," * bool(doubts) + " and was left out"


def _of_whom(owner: Owner, file: File) -> dict:
    modified = file.modified if file.packed is None else file.packed
    return {
        "student": owner.student, "number": owner.number, "email": owner.email, "platform": owner.platform,
        "late": owner.late, "upload": owner.upload, "path": file.path, "file": owner.name_of_file,
        "modified": modified if owner.created is None else owner.created, "dated": owner.created is not None,
    }  # fmt: skip


def _read(owner: Owner, file: File, assignments: dict[str, tuple[str, ...]]) -> Submission:
    """The code cells that grading runs, and the written answers."""
    named = by_name(stem(owner.name_of_file), assignments)
    submission = Submission(**_of_whom(owner, file), assignment=named)
    try:
        content = file.read()
        submission.digest = hashlib.sha256(content).hexdigest()
        document = load(content)
        cells = cells_of(document)
        submission.assignment = assignment_of(stem(owner.name_of_file), document, cells, assignments)
        if not submission.assignment:
            raise ValueError("it belongs to no assignment: neither its file name nor its cells say to which")
    except ValueError as error:
        submission.problem = str(error)
        return submission
    if named and named != submission.assignment:
        submission.notes.append(f"it is named like {named}, and graded as {submission.assignment}, as its cells are")
    marks = marks_of(submission.assignment, cells)
    submission.cells, said = to_run(cells, marks)
    submission.written, said_of_answers = written_answers(submission.assignment, cells, marks)
    submission.notes += [*said, *said_of_answers]
    return submission
