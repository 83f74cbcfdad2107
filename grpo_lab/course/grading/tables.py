"""The points of a class as tables: a CSV file for spreadsheets, and files for Moodle, Canvas and Gradescope.

`python -m grpo_lab.course totals` writes one table of all assignments, with the points for the answers in words. For
these, `grade` writes `written.csv` beside its tables, with a row for each student, where the teacher enters the points.
They are never overwritten.
"""

import csv
import io
import json
import textwrap
from pathlib import Path
from typing import NamedTuple

from grpo_lab.base.checks import InputError
from grpo_lab.base.files import write_atomically
from grpo_lab.course.checking.verdict import PartKind
from grpo_lab.course.grading.class_grades import GRADES_FILE, AnswerState, ClassGrades, GradedSubmission

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")  # beginnings of a cell that a spreadsheet takes for a formula
MAX_FEEDBACK_LENGTH = 400  # characters of feedback on one function
BYTE_ORDER_MARK = "\ufeff"  # begins a file: without it, Excel misreads letters with accents
WRITTEN_FILE = "written.csv"
_Row = dict[str, str]


def grades_table(grades: ClassGrades) -> str:
    """Return grades.csv: a row for each student with the points by function, their sum, the maximum and remarks."""
    names = list(grades.exercises)
    rows: list[list] = [["student", "id", *names, "points", "out of", "remarks"]]
    for graded in grades.submissions:
        points = [_points_or_blank(graded, graded.points[name]) for name in names]
        remarks = "; ".join(graded.remarks)
        rows.append(
            [*_name_and_id(graded), *points, _points_or_blank(graded, graded.total), grades.max_points, remarks]
        )
    return BYTE_ORDER_MARK + csv_text(rows)


def csv_text(rows: list[list]) -> str:
    """Return rows as CSV. A cell that a spreadsheet would take for a formula gets a quotation mark in front."""
    text_file = io.StringIO()
    csv.writer(text_file, lineterminator="\n").writerows([_without_formula(cell) for cell in row] for row in rows)
    return text_file.getvalue()


def _without_formula(cell):
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in FORMULA_STARTS else cell


def _points_or_blank(graded: GradedSubmission, points: int | float) -> str:
    """Return the points; a blank for a submission that could not be graded, since that is not 0 points."""
    return "" if graded.submission.problem else f"{points:g}"


def feedback(graded: GradedSubmission, grades: ClassGrades) -> str:
    """Return the feedback that a student reads on a platform: points, and an explanation if some are missing."""
    parts = [f"{note}." for note in graded.notes]
    for name, verdict in graded.verdicts.items():
        points, max_points = graded.points[name], grades.exercises[name].points
        explanation = "" if points == max_points else " " + verdict.message.replace("\n", " ").replace("`", "")
        parts.append(f"{name}: {points:g} of {max_points}.{explanation}")
    return "\n".join(textwrap.shorten(part, MAX_FEEDBACK_LENGTH, placeholder=" …") for part in parts)


def _name_and_id(graded: GradedSubmission) -> list[str]:
    return [graded.submission.student, graded.submission.platform_id]


def moodle_table(grades: ClassGrades) -> str:
    """Return Moodle's grading worksheet. It identifies students by the numbers in the file names of a download."""
    rows: list[list] = [["Identifier", "Full name", "Email address", "Grade", "Maximum Grade", "Feedback comments"]]
    for graded in grades.submissions:
        student, platform_id = _name_and_id(graded)
        identifier, points = f"Participant {platform_id}" if platform_id else "", _points_or_blank(graded, graded.total)
        rows.append([identifier, student, "", points, grades.max_points, feedback(graded, grades)])
    return csv_text(rows)


def canvas_table(grades: ClassGrades) -> str:
    """Return Canvas's gradebook: the columns that Canvas exports, a column of points, and a row of possible points."""
    head = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
    rows: list[list] = [[*head, grades.assignment_stem], ["    Points Possible", "", "", "", "", grades.max_points]]
    rows += [
        [*_name_and_id(graded), "", "", "", _points_or_blank(graded, graded.total)] for graded in grades.submissions
    ]
    return csv_text(rows)


PLATFORMS = {"moodle": moodle_table, "canvas": canvas_table}


def gradescope_results(grades: ClassGrades, graded: GradedSubmission) -> str:
    """Return `results.json` of one submission, the file in which Gradescope expects the results of an autograder."""
    tests = []
    for name, verdict in graded.verdicts.items():
        sentences = [part.text for part in verdict.parts if part.kind != PartKind.EXPECTED]
        state = graded.state(grades.exercises[name])
        tests.append(
            {
                "name": name, "score": graded.points[name], "max_score": grades.exercises[name].points,
                "status": "passed" if state == AnswerState.RIGHT else "failed", "output": "\n\n".join(sentences),
                "output_format": "text",
            }
        )  # fmt: skip
    content = {"score": graded.total, "output": "\n".join(graded.remarks), "tests": tests, "visibility": "visible"}
    return json.dumps(content, indent=1) + "\n"


def written_table(grades: ClassGrades, folder: Path, num_criteria: int | None) -> str:
    """Return written.csv: the rows that are in the folder already, unchanged, and blank points for new students.

    Args:
        folder: The folder of the results.
        num_criteria: The number of criteria of a full answer, each worth a point; None if it is not known.
    """
    old_rows = _read_rows(folder / WRITTEN_FILE)
    rows: list[list] = [["student", "id", "points", "out of"]]
    for graded in grades.submissions:
        student, platform_id = _name_and_id(graded)
        row = next((row for row in old_rows if (row.get("student"), row.get("id")) == (student, platform_id)), {})
        max_points = row.get("out of") or ("" if num_criteria is None else num_criteria)
        rows.append([student, platform_id, row.get("points", ""), max_points])
    return BYTE_ORDER_MARK + csv_text(rows)


class GradesSource(NamedTuple):
    """The grades of one assignment, and the folder that they and `written.csv` are in."""

    grades: ClassGrades
    folder: Path


def write_totals(folders: list[Path], output: Path) -> int:
    """Write the table of all assignments, and return the exit status 0.

    Args:
        folders: The folders that `grade` wrote, one for each assignment.
        output: The file of the table.

    Raises:
        InputError: If a folder has no grades, two folders are of the same assignment, or points are not a number.
    """
    sources: dict[str, GradesSource] = {}
    for folder in folders:
        if not (folder / GRADES_FILE).is_file():
            raise InputError("folder", str(folder), "expected a folder that `grade` wrote")
        grades = ClassGrades.read(folder / GRADES_FILE)
        stem = grades.assignment_stem
        if stem in sources:
            raise InputError("folder", str(folder), f"{stem} is in {sources[stem].folder}, too")
        sources[stem] = GradesSource(grades, folder)
    write_atomically(output, totals_table([sources[stem] for stem in sorted(sources)]))
    print(output)
    return 0


class _Column(NamedTuple):
    """A column of points.

    Attributes:
        points: The points as text, by the id of the student.
        max_points: The points of a full answer.
    """

    heading: str
    points: dict[str, str]
    max_points: float


def totals_table(sources: list[GradesSource]) -> str:
    """Return the table as CSV: a row for each student with the points of each assignment and their sum.

    sources: The grades of each assignment, in the order of the columns.
    """
    students: dict[str, GradedSubmission] = {}  # the first submission of each student, by id
    columns: list[_Column] = []
    remarks: dict[str, list[str]] = {}
    for grades, folder in sources:
        number, by_id = grades.assignment.number, {_student_id(graded): graded for graded in grades.submissions}
        for student_id, graded in by_id.items():
            students.setdefault(student_id, graded)
            if graded.submission.problem:
                remarks.setdefault(student_id, []).append(f"{number} could not be graded")
        points = {student_id: f"{g.total:g}" for student_id, g in by_id.items() if not g.submission.problem}
        columns.append(_Column(number, points, grades.max_points))
        columns += _column_in_words(number, by_id, folder)
        for student_id in students.keys() - by_id.keys():
            remarks.setdefault(student_id, []).append(f"{number} was not handed in")
    rows: list[list] = [["student", "id", *(column.heading for column in columns), "points", "out of", "remarks"]]
    max_points = sum(column.max_points for column in columns)
    for student_id, graded in sorted(students.items(), key=lambda item: item[1].submission.student.casefold()):
        submission = graded.submission
        cells = [column.points.get(student_id, "") for column in columns]
        total = sum(float(cell) for cell in cells if cell)
        platform_id = submission.platform_id if submission.platform == "canvas" else ""
        remark = "; ".join(remarks.get(student_id, ()))
        rows.append([submission.student, platform_id, *cells, f"{round(total, 2):g}", f"{max_points:g}", remark])
    return BYTE_ORDER_MARK + csv_text(rows)


def _column_in_words(number: str, by_id: dict[str, GradedSubmission], folder: Path) -> list[_Column]:
    """Return the column of points for the answers in words; none if the teacher has not entered any."""
    rows = {(row.get("student"), row.get("id")): row for row in _read_rows(folder / WRITTEN_FILE)}
    row_of = {key: rows.get((g.submission.student, g.submission.platform_id), {}) for key, g in by_id.items()}
    points = {key: row["points"].strip() for key, row in row_of.items() if row.get("points", "").strip()}
    if not points:
        return []
    max_points = max(_points_entered(row.get("out of") or "0", folder) for row in row_of.values())
    points = {key: f"{_points_entered(entered, folder):g}" for key, entered in points.items()}
    return [_Column(f"{number} in words", points, max_points)]


def _student_id(graded: GradedSubmission) -> str:
    """Return what identifies a student in all assignments: Canvas's number, else the name.

    Moodle's number differs from assignment to assignment.
    """
    submission = graded.submission
    return submission.platform_id if submission.platform == "canvas" else submission.student.casefold()


def _read_rows(file: Path) -> list[_Row]:
    """Read the rows of a CSV file, in which a spreadsheet may have replaced commas by semicolons."""
    if not file.is_file():
        return []
    text = file.read_text(encoding="utf-8-sig")
    return list(csv.DictReader(io.StringIO(text), delimiter=";" if ";" in text.partition("\n")[0] else ","))


def _points_entered(text: str, folder: Path) -> float:
    try:
        return float(text.replace(",", "."))
    except ValueError:
        raise InputError("points", text, f"expected a number in {folder / WRITTEN_FILE}") from None
