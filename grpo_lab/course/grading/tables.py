"""The points of a class as tables: a CSV file for spreadsheets, and files for Moodle, Canvas and Gradescope."""

import csv
import io
import json
import textwrap

from grpo_lab.course.checking.verdict import PartKind
from grpo_lab.course.grading.class_grades import AnswerState, ClassGrades, GradedSubmission

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")  # beginnings of a cell that a spreadsheet takes for a formula
MAX_FEEDBACK_LENGTH = 400  # characters of feedback on one function
BYTE_ORDER_MARK = "\ufeff"  # begins a file: without it, Excel misreads letters with accents


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
