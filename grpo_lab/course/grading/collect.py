"""Find the notebook that each student handed in, and read it as untrusted input.

A notebook is JSON from a stranger. Nothing in it is run here, and an error in it raises nothing: it becomes a sentence
in the report. So every student is listed, with a graded notebook or with the reason why there is none. In the download
of a learning platform, the names of its folders and files say to which student a file belongs.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import NamedTuple

from grpo_lab.base.checks import InputError
from grpo_lab.course.exercises import ASSIGNMENTS_BY_STEM, Assignment, find_assignment
from grpo_lab.course.grading.submission import (
    Submission,
    answers_as_text,
    assignment_of,
    assignment_of_file,
    cells_to_run,
    class_fingerprint_of,
    read_cells,
    written_answer,
)
from grpo_lab.course.grading.untrusted_files import (
    MAX_NOTEBOOKS,
    Archive,
    File,
    file_stem,
    files_in_archive,
    is_ignored,
    is_notebook,
    walk,
)
from grpo_lab.course.stub import is_as_released

MAX_NOTES = 20  # notes on files that were left out, for one student
# A file name with the number that a browser or Canvas appends to a repeated one: "name (1)" or "name-1".
_NUMBERED_NAME = re.compile(r"(?P<base>.*?)(?: ?\((?P<browser>\d{1,3})\)|-(?P<canvas>\d{1,2}))?", re.DOTALL)
MAX_OUTER_FOLDERS = 4  # folders and archives that may lie around a class
# The names that learning platforms give. Moodle: "Ada Lovelace_1234567_assignsubmission_file_" is the name of a folder
# or the beginning of a file name. Canvas: "lovelaceada_LATE_1234_56789_name.ipynb".
_MOODLE = re.compile(r"(?P<name>.+?)_(?P<id>\d+)_assignsubmission_\w+?_(?P<rest>.*)", re.DOTALL)
_CANVAS = re.compile(r"(?P<name>[^_]+)(?:_LATE)?_(?P<id>\d+)_(?P<file>\d{3,})_(?P<rest>.+)", re.DOTALL)


def find_submissions(folder: Path, number: str | None = None) -> tuple[Assignment, list[Submission]]:
    """Return the assignment that is graded, and the notebook that each student handed in for it.

    An entry of the folder is `alice/02_….ipynb`, `alice.ipynb`, `alice.zip`, or has a name that Moodle or Canvas gave.
    If a student has several notebooks for the assignment, one of them counts, by these rules in this order:

    1. A notebook with work in it counts before an untouched one.
    2. A notebook with the assignment's own file name counts before one with another name.
    3. Of names that differ in the number that a browser or Canvas appended, ` (1)` or `-1`, the highest number counts.
    4. Of Canvas's uploads the latest counts; of all others the first by name.

    Args:
        folder: The folder of the submissions, a zip archive of it, or a folder with a platform's download.
        number: The number of the assignment, such as "02"; None means the one that most students handed in.

    Raises:
        ValueError: If the folder is neither a folder nor a zip archive, if it is empty, or if there is no such
            assignment.
    """
    files = files_of_class(list(_files(folder)), is_archive=folder.is_file())
    by_student: dict[tuple[str, str], list[tuple[Submission, File]]] = {}
    for file in files:
        submission = owner_of(file.parts)
        by_student.setdefault((submission.student, submission.platform_id), []).append((submission, file))
    if not by_student:
        raise InputError("folder", str(folder), "expected one folder or notebook per student, and found none")
    candidates = [_read_notebooks(by_student[student]) for student in sorted(by_student)]
    assignment = find_assignment(number) if number else _most_handed_in([files.notebooks for files in candidates])
    chosen = [_choose_notebook(student_files, assignment) for student_files in candidates]
    _make_names_distinct(chosen)
    return assignment, sorted(chosen, key=lambda submission: submission.student.casefold())


def _files(folder: Path) -> Iterable[File]:
    if folder.is_file() and folder.suffix.lower() == ".zip":
        yield from files_in_archive(Archive(folder), (folder.name,))
        return
    if not folder.is_dir():
        raise InputError("folder", str(folder), "expected a folder of submissions, or a zip archive of one")
    owner = (folder.resolve().name,) if is_folder_of_one_student(folder) else ()
    for entry in sorted(folder.iterdir(), key=lambda p: p.name):
        if not is_ignored(entry.name):
            files = list(walk(entry)) or [File((entry.name, ""))]  # an empty folder is a submission, too
            yield from (replace(file, parts=(*owner, *file.parts)) for file in files)


def is_folder_of_one_student(folder: Path) -> bool:
    """Return True for a folder whose notebooks are all named after assignments, and none after a student."""
    if not folder.is_dir():
        return False
    notebooks = [entry.name for entry in folder.iterdir() if is_notebook(entry.name) and not is_ignored(entry.name)]
    return bool(notebooks) and all(file_stem(name).startswith(tuple(ASSIGNMENTS_BY_STEM)) for name in notebooks)


class _StudentFiles(NamedTuple):
    """The files of one student: notebooks, and remarks on all other files."""

    notebooks: list[Submission]
    remarks: list[str]


def _most_handed_in(notebooks_by_student: list[list[Submission]]) -> Assignment:
    """Return the assignment for which most students have a notebook."""
    handed_in = [{notebook.assignment_stem for notebook in notebooks} - {""} for notebooks in notebooks_by_student]
    counts = Counter(stem for stems in handed_in for stem in stems)
    if not counts:
        problem = "holds no notebook of an assignment"
        raise InputError("folder", None, "say with --assignment which one is graded", problem=problem)
    return ASSIGNMENTS_BY_STEM[min(counts, key=lambda stem: (-counts[stem], stem))]


def _read_notebooks(files: list[tuple[Submission, File]]) -> _StudentFiles:
    """Return the notebooks of one student.

    If there is none, one submission without content states this as its problem.
    """
    notebooks: list[Submission] = []
    remarks: list[str] = []
    for submission, file in files:
        if not is_notebook(file.name):
            remark = f"{file.name}: {file.problem}" if file.problem else f"{file.name} is not a notebook"
            if file.name:  # an empty folder has a file without a name, on which there is nothing to remark
                remarks.append(remark)
        elif len(notebooks) >= MAX_NOTEBOOKS:
            remarks.append(f"{file.name}: more than {MAX_NOTEBOOKS} notebooks are not read")
        else:
            notebooks.append(_read_notebook(submission, file))
    if notebooks:
        return _StudentFiles(notebooks, remarks)
    why = "no notebook (.ipynb)" + (f" ({'; '.join(remarks[:5])})" if remarks else "")
    return _StudentFiles([replace(files[0][0], file="", problem=why)], [])


def _choose_notebook(student_files: _StudentFiles, assignment: Assignment) -> Submission:
    """Return the notebook of a student that counts, by the rules of `find_submissions`; its notes name the others."""
    notebooks, remarks = student_files
    candidates = sorted((nb for nb in notebooks if nb.assignment_stem in ("", assignment.stem)), key=_preference)
    other_notebooks = [nb for nb in notebooks if nb.assignment_stem not in ("", assignment.stem)]
    other_notes = [f"{nb.file} is for {nb.assignment_stem}, which is not graded here" for nb in other_notebooks]
    if candidates:
        chosen, *left_out = candidates
        notes = [f"{nb.file} is for the same assignment{_reason_left_out(nb, chosen)}" for nb in left_out] + other_notes
    else:
        problem = f"it is for {other_notebooks[0].assignment_stem}, which is not graded here"
        chosen = replace(other_notebooks[0], problem=problem, assignment_stem="", cells=[], notes=[])
        notes = other_notes[1:]
    notes = [f"{note}, and was left out" for note in [*notes, *remarks]]
    if len(notes) > MAX_NOTES:
        notes = [*notes[: MAX_NOTES - 1], notes[-1]]
    return replace(chosen, notes=[*chosen.notes, *notes])


def _preference(submission: Submission) -> tuple:
    """Return the sort key of a student's notebooks, by the rules of `find_submissions`; unreadable ones come last."""
    match = _NUMBERED_NAME.fullmatch(file_stem(submission.file))
    assert match is not None  # any name fits the pattern
    repetition = int(match["browser"] or match["canvas"] or 0)
    is_renamed = match["base"] != submission.assignment_stem
    has_work = not submission.problem and not is_untouched(submission)
    return bool(submission.problem), not has_work, is_renamed, -repetition, -submission.upload_id, submission.file


def _reason_left_out(submission: Submission, chosen: Submission) -> str:
    """Return the end of a note on a notebook that does not count: the reason, unless its name is the reason."""
    if submission.problem:
        return ", cannot be read"
    return ", has nothing written in it" if is_untouched(submission) and not is_untouched(chosen) else ""


def is_untouched(submission: Submission) -> bool:
    """Return True if all functions are as they were released, as stubs or variants, and nothing is written in words."""
    assignment = ASSIGNMENTS_BY_STEM.get(submission.assignment_stem)
    if submission.written_answer or submission.exercises_as_text or assignment is None:
        return False
    return all(is_as_released(cell.source, assignment.exercises) for cell in submission.cells)


def _make_names_distinct(submissions: list[Submission]) -> None:
    """Make the names of students unique, in place: by the platform's numbers in parentheses, or by an appended 2."""
    counts, used_names = Counter(submission.student for submission in submissions), set()
    for submission in sorted(submissions, key=lambda submission: (submission.student, submission.platform_id)):
        label = " ".join(submission.student.split())
        if counts[submission.student] > 1 and submission.platform_id:
            label += f" ({submission.platform_id})"
        names = (label if n == 1 else f"{label} {n}" for n in count(1))
        submission.student = next(name for name in names if name.casefold() not in used_names)
        used_names.add(submission.student.casefold())


def _read_notebook(submission: Submission, file: File) -> Submission:
    """Return the submission with what its file contains, or with the reason why that cannot be graded."""
    named = assignment_of_file(file_stem(submission.file))
    try:
        cells = read_cells(file.read())
        assignment = assignment_of(named, cells)
        if assignment is None:
            raise InputError("it belongs to no assignment: neither its file name nor its cells say to which")
    except InputError as error:
        return replace(submission, assignment_stem=named.stem if named else "", problem=str(error))
    code_cells, length_notes = cells_to_run(assignment, cells)
    notes = [*submission.notes, *length_notes]
    if named is not None and named != assignment:
        notes.insert(0, f"it is named like {named.stem}, and graded as {assignment.stem}, as its cells are")
    exercises_as_text = answers_as_text(cells)
    notes += [f"the cell of {name} is text and not code, so it did not run" for name in exercises_as_text]
    return replace(
        submission,
        assignment_stem=assignment.stem,
        cells=code_cells,
        written_answer=written_answer(cells),
        notes=notes,
        exercises_as_text=exercises_as_text,
        class_fingerprint=class_fingerprint_of(cells),
    )


def owner_of(parts: tuple[str, ...]) -> Submission:
    """Return a submission without content for the student to whom a file belongs.

    The student's name is taken from a name that a platform gave, else from the outermost folder or the file itself.

    parts: The names of the folders on the way to the file, and the name of the file.
    """
    first, file = parts[0], parts[-1]
    own_name = file_stem(first) if len(parts) == 1 or first == file else first
    # Canvas is tried first: no name of Moodle's fits its pattern, but the rest of a Canvas name, which the student
    # chose, may look like one of Moodle's.
    if match := _CANVAS.fullmatch(first):
        file = match["rest"] if len(parts) == 1 else file
        return Submission(match["name"], file, "canvas", match["id"], upload_id=int(match["file"][:18]))
    if match := _MOODLE.fullmatch(first) or _MOODLE.fullmatch(own_name + "_"):
        file = match["rest"] or file if len(parts) == 1 else file
        return Submission(match["name"].strip(), file, "moodle", match["id"])
    return Submission(own_name, file)


def files_of_class(files: list[File], is_archive: bool) -> list[File]:
    """Return the files with paths that begin at the students, without folders or archives that contain the whole class.

    Such an outer folder is removed only if all files lie in it, and never if a platform gave its name to a student: an
    archive that a student hands in does not become a class. If the class is an archive, the archive itself is removed,
    and also a single folder in it that holds a folder for each student.

    Args:
        files: All files that were found.
        is_archive: Whether they were read from one archive.
    """
    layers = [files]
    for _ in range(MAX_OUTER_FOLDERS + 1 + is_archive):
        inner = layers[-1]
        if _is_download(inner):
            return inner
        outer = {file.parts[0] if len(file.parts) > 1 else "" for file in inner}
        if len(outer) != 1 or outer == {""} or owner_of((*outer, "")).platform:
            break
        layers.append([replace(file, parts=file.parts[1:]) for file in inner])
    class_layers = [layer for layer in layers[2:] if min(len(file.parts) for file in layer) > 1]
    return [*layers[:2], *class_layers][-1] if is_archive else files


def _is_download(files: list[File]) -> bool:
    """Return True for a platform's download: one outermost name has Moodle's form, or two have Canvas's."""
    platforms = [owner_of(parts).platform for parts in {file.parts[0]: file.parts for file in files}.values()]
    return "moodle" in platforms or platforms.count("canvas") > 1
