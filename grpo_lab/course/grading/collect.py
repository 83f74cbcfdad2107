"""Find what students handed in, one notebook a student, and read it as untrusted input.

A notebook is JSON that a stranger wrote. Whatever is wrong with it becomes a sentence in the report; nothing here
raises for it, and nothing of it is run. What was handed in is graded or listed with a reason, never left out.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from pathlib import Path

from grpo_lab.commands.checks import InputError
from grpo_lab.course.grading.downloads import Submission, class_of, owner_of
from grpo_lab.course.grading.notebook import assignment_of, by_name, read_cells, to_run, written_answer
from grpo_lab.course.grading.untrusted import (
    MAX_NOTEBOOKS,
    File,
    archived,
    is_notebook,
    stem,
    unseen,
    walk,
)
from grpo_lab.course.release import ASSIGNMENTS

MAX_NOTES = 20  # files that are said to be left out
_AGAIN = re.compile(r"(?P<base>.*?)(?: ?\((?P<browser>\d{1,3})\)|-(?P<canvas>\d{1,2}))?", re.DOTALL)


def find_submissions(folder: Path, wanted: str | None = None) -> tuple[str, list[Submission]]:
    """The assignment that is graded, and what each student of a class handed in for it.

    An entry of the folder is `alice/02_….ipynb`, `alice.ipynb`, `alice.zip`, or has a name that Moodle or Canvas made.
    Of two notebooks for the assignment, that with the assignment's own file name counts; of those that differ in what
    a browser or Canvas put behind their name, ` (1)` or `-1`, the last; of others the first by name.

    Args:
        folder: where the submissions lie, or a zip archive of that, or a platform's download in a folder.
        wanted: such as "02"; None means the one that most students handed in.

    Raises:
        ValueError: if the folder is none and no zip archive, if it is empty, and for an assignment that there is not.
    """
    files = class_of(list(_files(folder)), archive=folder.is_file())
    by_student: dict[tuple[str, str], list[tuple[Submission, File]]] = {}
    for file in files:
        one = owner_of(file.parts)
        by_student.setdefault((one.student, one.number), []).append((one, file))
    if not by_student:
        raise InputError("folder", str(folder), "expected one folder or notebook a student, and found none")
    read = [_read_all(own) for _, own in sorted(by_student.items(), key=lambda item: item[0])]
    counted = _stem_of(wanted) if wanted else _most_handed_in([notebooks for notebooks, _ in read])
    found = [_one_of(notebooks, other, counted) for notebooks, other in read]
    _name_apart(found)
    return counted, sorted(found, key=lambda one: one.student.casefold())


def _files(folder: Path) -> Iterable[File]:
    if folder.is_file() and folder.suffix.lower() == ".zip":
        yield from archived((folder,), (folder.name,))
        return
    if not folder.is_dir():
        raise InputError("folder", str(folder), "expected a folder of submissions, or a zip archive of one")
    for entry in sorted(folder.iterdir(), key=lambda p: p.name):
        if not unseen(entry.name):
            files = list(walk(entry))
            yield from files or [File((entry.name, ""))]  # an empty folder is a submission, too


def _stem_of(wanted: str) -> str:
    for name in ASSIGNMENTS:
        if wanted in (name, name[:2]):
            return name
    numbers = ", ".join(name[:2] for name in ASSIGNMENTS)
    raise InputError("assignment", wanted, f"expected one of {numbers}")


def _most_handed_in(read: list[list[Submission]]) -> str:
    often = Counter(name for notebooks in read for name in {one.assignment for one in notebooks} - {""})
    if not often:
        what = "holds no notebook of an assignment"
        raise InputError("folder", None, "say with --assignment which one is graded", found=what)
    return min(often, key=lambda name: (-often[name], name))


def _read_all(files: list[tuple[Submission, File]]) -> tuple[list[Submission], list[str]]:
    """The notebooks of one student, and what is said of the other files. Without a notebook, one that says so."""
    read, other = [], []
    for one, file in files:
        if not is_notebook(file.name):
            said = f"{file.name}: {file.problem}" if file.problem else f"{file.name} is no notebook"
            other += [said] if file.name else []  # of an empty folder
        elif len(read) >= MAX_NOTEBOOKS:
            other.append(f"{file.name}: more than {MAX_NOTEBOOKS} notebooks are not read")
        else:
            read.append(_read(one, file))
    if read:
        return read, other
    why = "no notebook (.ipynb)" + (f" ({'; '.join(other[:5])})" if other else "")
    return [replace(files[0][0], file="", problem=why)], []


def _one_of(notebooks: list[Submission], other: list[str], counted: str) -> Submission:
    """The notebook of a student that counts, by the rule of `find_submissions`; the others are named in its notes."""
    own = sorted((one for one in notebooks if one.assignment in ("", counted)), key=_comes_first)
    strays = [one for one in notebooks if one.assignment not in ("", counted)]
    said = [f"{one.file} is for the same assignment" + ", cannot be read" * bool(one.problem) for one in own[1:]]
    said += [f"{one.file} is for {one.assignment}, which is not graded here" for one in strays]
    if not own:
        own = [_emptied(strays[0])]
        said = said[1:]
    said = [f"{one}, and was left out" for one in [*said, *other]]
    own[0].notes += said if len(said) <= MAX_NOTES else [*said[: MAX_NOTES - 1], said[-1]]
    return own[0]


def _emptied(one: Submission) -> Submission:
    one.problem = f"it is for {one.assignment}, which is not graded here"
    one.assignment, one.cells, one.notes = "", [], []
    return one


def _comes_first(one: Submission) -> tuple:
    """Readable ones, the assignment's own name, the last version of it, Canvas's last upload, the first by name."""
    match = _AGAIN.fullmatch(stem(one.file))
    again = int(match["browser"] or match["canvas"] or 0)
    return bool(one.problem), match["base"] != one.assignment, -again, -one.upload, one.file


def _name_apart(found: list[Submission]) -> None:
    """Those whose names would be alike get the platform's numbers behind them, or a 2."""
    often, taken = Counter(one.student for one in found), set()
    for one in sorted(found, key=lambda one: (one.student, one.number)):
        label = " ".join(one.student.split()) + (f" ({one.number})" if often[one.student] > 1 and one.number else "")
        names = (label if n == 1 else f"{label} {n}" for n in count(1))
        one.student = next(name for name in names if name.casefold() not in taken)
        taken.add(one.student.casefold())


def _read(one: Submission, file: File) -> Submission:
    """The submission with the code cells that grading runs."""
    one.assignment = named = by_name(stem(one.file))
    try:
        cells = read_cells(file.read())
        one.assignment = assignment_of(named, cells)
        if not one.assignment:
            raise InputError("it belongs to no assignment: neither its file name nor its cells say to which")
    except InputError as error:
        one.problem = str(error)
        return one
    if named and named != one.assignment:
        one.notes.append(f"it is named like {named}, and graded as {one.assignment}, as its cells are")
    one.cells, said = to_run(one.assignment, cells)
    one.notes += said
    one.written = written_answer(cells)
    return one
