"""Find what students handed in, and read it without believing any of it.

A notebook is JSON that a stranger wrote. Whatever is wrong with it becomes a sentence in the report; nothing here
raises for it, and nothing of it is run. What was handed in is graded or listed with a reason, never left out.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from grpo_lab.course.grading.answers import written_answers
from grpo_lab.course.grading.downloads import (
    Listed,
    Owner,
    class_of,
    listed_by_gradescope,
    owner_of,
    without_the_archive,
)
from grpo_lab.course.grading.files import GRADESCOPE_LIST, File, archived, is_notebook, stem, unseen, walk
from grpo_lab.course.grading.notebook import Cell, assignment_of, by_name, cells_of, load, marks_of, to_run

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


def find_submissions(
    folder: Path, assignments: dict[str, tuple[str, ...]], wanted: Iterable[str] = ()
) -> list[Submission]:
    """Every notebook of a class, in a folder or in the zip archive of one, one student an entry.

    An entry is `alice/02_….ipynb`, `alice.ipynb`, `alice.zip`, or has a name that Moodle, Canvas or Gradescope made.
    Of two notebooks for one assignment, that with the assignment's own file name counts; of those that differ in what
    a browser or Canvas put behind their name, ` (1)` or `-1`, the last; of others the first by name.

    Args:
        folder: where the submissions lie, or a download of a platform with a folder or an archive around it.
        assignments: stem -> names of its exercises.
        wanted: the assignments that count, such as "02"; none means those that more than half of the students handed
            in, or else what most did.

    Raises:
        ValueError: if the folder is none, and no zip archive; if `wanted` has an assignment that there is not.
    """
    wanted = _stems(wanted, assignments)
    files = class_of(list(_files(folder)))
    lists = [file for file in files if file.parts == (GRADESCOPE_LIST,)]
    listed = listed_by_gradescope(lists)
    by_student: dict[tuple[str, str], list[tuple[Owner, File]]] = {}
    for file in files:
        if file not in lists:
            owner = owner_of(file.parts)
            by_student.setdefault((owner.student, owner.number), []).append((owner, file))
    found = []
    for (student, number), own in sorted(by_student.items(), key=lambda item: item[0]):
        ones = _of_one_student(student, number, own, assignments)
        if student in listed:
            _take(listed[student], ones)
        found.append(ones)
    return _that_count(found, wanted or _most_handed_in(found))


def _files(folder: Path) -> Iterable[File]:
    if folder.is_file() and folder.suffix.lower() == ".zip":
        yield from without_the_archive(list(archived(folder, (folder.name,))))
        return
    if not folder.is_dir():
        raise ValueError(f"folder is {folder}; expected a folder of submissions, or a zip archive of one")
    for entry in sorted(folder.iterdir(), key=lambda p: p.name):
        if unseen(entry.name):
            continue
        if entry.is_dir() and not entry.is_symlink() and not any(entry.iterdir()):
            yield File((entry.name, ""), entry, bytes)
        yield from walk(entry)


def _take(listed: Listed, ones: list[Submission]) -> None:
    """What Gradescope's list says of a submission; who handed in alone has a number and an address of their own."""
    for one in ones:
        one.student = " and ".join(listed.names) or one.student
        if len(listed.names) == 1:
            one.number, one.email = "".join(listed.numbers) or one.number, "".join(listed.emails)
        if listed.created is not None:
            one.modified, one.dated = listed.created, True


def _stems(wanted: Iterable[str], assignments: dict[str, tuple[str, ...]]) -> set[str]:
    stems = {name: next((one for one in assignments if name in (one, one[:2])), "") for name in wanted}
    if unknown := [name for name, found in stems.items() if not found]:
        raise ValueError(f"assignment is {unknown[0]!r}; expected one of {', '.join(one[:2] for one in assignments)}")
    return set(stems.values())


def _most_handed_in(found: list[list[Submission]]) -> set[str]:
    """The assignments of more than half of those who handed one in; or else what most did."""
    counted = Counter(assignment for ones in found for assignment in {one.assignment for one in ones} - {""})
    students = sum(any(one.assignment for one in ones) for ones in found)
    most = max(counted.values(), default=0)
    return {assignment for assignment, n in counted.items() if 2 * n > students or n == most}


def _that_count(found: list[list[Submission]], counted: set[str]) -> list[Submission]:
    """What is of another assignment is remarked, and so is what is missing."""
    chosen = []
    for ones in found:
        own = [one for one in ones if not one.assignment or one.assignment in counted]
        other = [one for one in ones if one not in own]
        said = [f"{one.name} is for {one.assignment}, which is not graded here, and was left out" for one in other]
        if not own:
            other[0].problem = f"it is for {other[0].assignment}, which is not graded here"
            other[0].notes, said, own = said[1:], [], [other[0]]
            other[0].assignment = ""
        elif missing := counted - {one.assignment for one in own} if not any(one.problem for one in own) else set():
            said.append(f"not handed in: {', '.join(sorted(missing))}")
        own[0].notes += said
        chosen += own
    return chosen


def _of_one_student(student: str, number: str, files: list[tuple[Owner, File]], assignments) -> list[Submission]:
    read, other = [], []
    for owner, file in files:
        if is_notebook(file.name):
            read.append(_read(student, owner, file, assignments))
        else:
            other.append(_why_not(file))
    if not read:
        why = "no notebook (.ipynb)" + (f" ({'; '.join(filter(None, other[:5]))})" if any(other) else "")
        owner, file = files[0]
        return [Submission(student, file.path, problem=why, number=number, platform=owner.platform)]
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
    return bool(one.problem), base != one.assignment, -again, -one.upload, one.file


def _version(one: Submission) -> tuple[str, int]:
    """The name without what a browser or, with a new submission of the same name, Canvas puts behind it; and that."""
    match = _AGAIN.fullmatch(stem(one.file))
    return match["base"], int(match["browser"] or match["canvas"] or 0)


def _left_out(one: Submission, chosen: Submission) -> str:
    later = one.modified is not None and chosen.modified is not None and one.modified > chosen.modified + 1
    doubts = ["cannot be read"] * bool(one.problem) + ["has the later date"] * later
    return ", ".join([f"{one.file} is for the same assignment", *doubts, "and was left out"])


def _read(student: str, owner: Owner, file: File, assignments: dict[str, tuple[str, ...]]) -> Submission:
    """The code cells that grading runs, and the written answers."""
    named = by_name(stem(owner.name_of_file), assignments)
    submission = Submission(
        student, file.path, named, file=owner.name_of_file, number=owner.number, platform=owner.platform,
        late=owner.late, modified=file.modified, upload=owner.upload,
    )  # fmt: skip
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
