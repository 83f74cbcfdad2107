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

from grpo_lab.base.checks import InputError
from grpo_lab.course.grading.downloads import Submission, class_of, owner_of
from grpo_lab.course.grading.notebook import (
    answers_as_text,
    assignment_of,
    assignment_of_file,
    cells_to_run,
    class_of_variants,
    read_cells,
    written_answer,
)
from grpo_lab.course.grading.untrusted import (
    MAX_NOTEBOOKS,
    File,
    archived,
    is_notebook,
    stem,
    unseen,
    walk,
)
from grpo_lab.course.release import ASSIGNMENTS, number_of, of_notebook
from grpo_lab.course.stub import is_as_released

MAX_NOTES = 20  # files that are said to be left out
_AGAIN = re.compile(r"(?P<base>.*?)(?: ?\((?P<browser>\d{1,3})\)|-(?P<canvas>\d{1,2}))?", re.DOTALL)


def find_submissions(folder: Path, assignment: str | None = None) -> tuple[str, list[Submission]]:
    """The assignment that is graded, and what each student of a class handed in for it.

    An entry of the folder is `alice/02_….ipynb`, `alice.ipynb`, `alice.zip`, or has a name that Moodle or Canvas made.
    Of two notebooks for the assignment, one in which nothing was written never counts before one with work in it. Else
    that with the assignment's own file name counts; of those that differ in what a browser or Canvas put behind their
    name, ` (1)` or `-1`, the last; of others the first by name.

    Args:
        folder: where the submissions lie, or a zip archive of that, or a platform's download in a folder.
        assignment: such as "02"; None means the one that most students handed in.

    Raises:
        ValueError: if the folder is none and no zip archive, if it is empty, and for an assignment that there is not.
    """
    files = class_of(list(_files(folder)), archive=folder.is_file())
    by_student: dict[tuple[str, str], list[tuple[Submission, File]]] = {}
    for file in files:
        submission = owner_of(file.parts)
        by_student.setdefault((submission.student, submission.number), []).append((submission, file))
    if not by_student:
        raise InputError("folder", str(folder), "expected one folder or notebook a student, and found none")
    read = [_read_all(by_student[student]) for student in sorted(by_student)]
    graded_assignment = _stem_of(assignment) if assignment else _most_handed_in([notebooks for notebooks, _ in read])
    chosen = [_choose_notebook(notebooks, remarks, graded_assignment) for notebooks, remarks in read]
    _make_names_distinct(chosen)
    return graded_assignment, sorted(chosen, key=lambda submission: submission.student.casefold())


def _files(folder: Path) -> Iterable[File]:
    if folder.is_file() and folder.suffix.lower() == ".zip":
        yield from archived((folder,), (folder.name,))
        return
    if not folder.is_dir():
        raise InputError("folder", str(folder), "expected a folder of submissions, or a zip archive of one")
    owner = (folder.resolve().name,) if own_folder(folder) else ()
    for entry in sorted(folder.iterdir(), key=lambda p: p.name):
        if not unseen(entry.name):
            files = list(walk(entry)) or [File((entry.name, ""))]  # an empty folder is a submission, too
            yield from (replace(file, parts=(*owner, *file.parts)) for file in files)


def own_folder(folder: Path) -> bool:
    """Recognise the folder of one student: its notebooks are named after assignments, and none after a student."""
    if not folder.is_dir():
        return False
    notebooks = [entry.name for entry in folder.iterdir() if is_notebook(entry.name) and not unseen(entry.name)]
    return bool(notebooks) and all(stem(name).startswith(tuple(ASSIGNMENTS)) for name in notebooks)


def _stem_of(assignment: str) -> str:
    for name in ASSIGNMENTS:
        if assignment in (name, number_of(name)):
            return name
    numbers = ", ".join(number_of(name) for name in ASSIGNMENTS)
    raise InputError("assignment", assignment, f"expected one of {numbers}")


def _most_handed_in(read: list[list[Submission]]) -> str:
    counts = Counter(name for notebooks in read for name in {notebook.assignment for notebook in notebooks} - {""})
    if not counts:
        problem = "holds no notebook of an assignment"
        raise InputError("folder", None, "say with --assignment which one is graded", found=problem)
    return min(counts, key=lambda name: (-counts[name], name))


def _read_all(files: list[tuple[Submission, File]]) -> tuple[list[Submission], list[str]]:
    """The notebooks of one student, and remarks on the other files. Without a notebook, one that says so."""
    notebooks, remarks = [], []
    for submission, file in files:
        if not is_notebook(file.name):
            remark = f"{file.name}: {file.problem}" if file.problem else f"{file.name} is no notebook"
            remarks += [remark] if file.name else []  # of an empty folder
        elif len(notebooks) >= MAX_NOTEBOOKS:
            remarks.append(f"{file.name}: more than {MAX_NOTEBOOKS} notebooks are not read")
        else:
            notebooks.append(_read(submission, file))
    if notebooks:
        return notebooks, remarks
    why = "no notebook (.ipynb)" + (f" ({'; '.join(remarks[:5])})" if remarks else "")
    return [replace(files[0][0], file="", problem=why)], []


def _choose_notebook(notebooks: list[Submission], remarks: list[str], graded_assignment: str) -> Submission:
    """The notebook of a student that counts, by the rule of `find_submissions`; the others are named in its notes."""
    candidates = sorted((nb for nb in notebooks if nb.assignment in ("", graded_assignment)), key=_preference)
    strays = [nb for nb in notebooks if nb.assignment not in ("", graded_assignment)]
    notes = [f"{nb.file} is for the same assignment{_why_not(nb, candidates[0])}" for nb in candidates[1:]]
    notes += [f"{nb.file} is for {nb.assignment}, which is not graded here" for nb in strays]
    if not candidates:
        candidates = [_without_cells(strays[0])]
        notes = notes[1:]
    notes = [f"{note}, and was left out" for note in [*notes, *remarks]]
    candidates[0].notes += notes if len(notes) <= MAX_NOTES else [*notes[: MAX_NOTES - 1], notes[-1]]
    return candidates[0]


def _without_cells(submission: Submission) -> Submission:
    submission.problem = f"it is for {submission.assignment}, which is not graded here"
    submission.assignment = ""
    submission.cells = []
    submission.notes = []
    return submission


def _preference(submission: Submission) -> tuple:
    """The order of a student's notebooks: readable, with work in it, of its own name, last version, last upload."""
    match = _AGAIN.fullmatch(stem(submission.file))
    repetition = int(match["browser"] or match["canvas"] or 0)
    renamed = match["base"] != submission.assignment
    has_work = not submission.problem and not is_untouched(submission)
    return bool(submission.problem), not has_work, renamed, -repetition, -submission.upload, submission.file


def _why_not(submission: Submission, counting: Submission) -> str:
    if submission.problem:
        return ", cannot be read"
    return ", has nothing written in it" if is_untouched(submission) and not is_untouched(counting) else ""


def is_untouched(submission: Submission) -> bool:
    """True if each function is as it was released, with a variant's formula or without, and no answer is in words."""
    if submission.written or submission.as_text or submission.assignment not in ASSIGNMENTS:
        return False
    exercises = of_notebook(number_of(submission.assignment))
    return all(is_as_released(cell.source, exercises) for cell in submission.cells)


def _make_names_distinct(submissions: list[Submission]) -> None:
    """Tell students of the same name apart by the platform's numbers behind it, or by a 2."""
    counts, used_names = Counter(submission.student for submission in submissions), set()
    for submission in sorted(submissions, key=lambda submission: (submission.student, submission.number)):
        label = " ".join(submission.student.split())
        if counts[submission.student] > 1 and submission.number:
            label += f" ({submission.number})"
        names = (label if n == 1 else f"{label} {n}" for n in count(1))
        submission.student = next(name for name in names if name.casefold() not in used_names)
        used_names.add(submission.student.casefold())


def _read(submission: Submission, file: File) -> Submission:
    """The submission with the code cells that grading runs."""
    submission.assignment = named = assignment_of_file(stem(submission.file))
    try:
        cells = read_cells(file.read())
        submission.assignment = assignment_of(named, cells)
        if not submission.assignment:
            raise InputError("it belongs to no assignment: neither its file name nor its cells say to which")
    except InputError as error:
        submission.problem = str(error)
        return submission
    if named and named != submission.assignment:
        submission.notes.append(f"it is named like {named}, and graded as {submission.assignment}, as its cells are")
    submission.cells, notes = cells_to_run(submission.assignment, cells)
    submission.notes += notes
    submission.written, submission.as_text = written_answer(cells), answers_as_text(cells)
    submission.of_class = class_of_variants(cells)
    submission.notes += [f"the cell of {name} is text and not code, so it did not run" for name in submission.as_text]
    return submission
