"""The marks as tables: one for every spreadsheet, and what Moodle, Canvas and Gradescope's autograder take."""

import csv
import io
import json
import textwrap

from grpo_lab.course.grading.grade import ClassGrades, GradedSubmission

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet would compute
MAX_FEEDBACK = 400  # characters about one function
MARK = "\ufeff"  # at the beginning of a file: without it, Excel reads names with accents as something else


def grades(grading: ClassGrades) -> str:
    """grades.csv: a row a student, with points for each function, the sum, what could be earned, and remarks."""
    names = list(grading.exercises)
    rows: list[list] = [["student", "id", *names, "points", "out of", "remarks"]]
    for graded in grading.students:
        points = [_blank_or(graded, graded.points[name]) for name in names]
        remarks = "; ".join(graded.remarks)
        rows.append([*_who(graded), *points, _blank_or(graded, graded.total), grading.out_of, remarks])
    return MARK + to_text(rows)


def to_text(rows: list[list]) -> str:
    """CSV of the rows. A spreadsheet takes a cell that begins with `=` for a formula: it gets a quotation mark."""
    text_file = io.StringIO()
    safe = [[f"'{cell}" if isinstance(cell, str) and cell[:1] in FORMULA else cell for cell in row] for row in rows]
    csv.writer(text_file, lineterminator="\n").writerows(safe)
    return text_file.getvalue()


def _blank_or(graded: GradedSubmission, points: int | float) -> str:
    """The points; blank for a submission that could not be graded, which is no 0."""
    return "" if graded.submission.problem else f"{points:g}"


def feedback(graded: GradedSubmission, grading: ClassGrades) -> str:
    """Write what the student reads on a platform: points and, where some are missing, a sentence for each function."""
    parts = [f"{note}." for note in graded.notes]
    for name, verdict in graded.verdicts.items():
        points, out_of = graded.points[name], grading.exercises[name].points
        says = "" if points == out_of else " " + verdict.message.replace("\n", " ").replace("`", "")
        parts.append(f"{name}: {points:g} of {out_of}.{says}")
    return "\n".join(textwrap.shorten(part, MAX_FEEDBACK, placeholder=" …") for part in parts)


def _who(graded: GradedSubmission) -> list[str]:
    return [graded.submission.student, graded.submission.number]


def moodle(grading: ClassGrades) -> str:
    """Moodle's grading worksheet. Its identifier is the number in the names of a download."""
    rows: list[list] = [["Identifier", "Full name", "Email address", "Grade", "Maximum Grade", "Feedback comments"]]
    for graded in grading.students:
        student, number = _who(graded)
        identifier, points = f"Participant {number}" if number else "", _blank_or(graded, graded.total)
        rows.append([identifier, student, "", points, grading.out_of, feedback(graded, grading)])
    return to_text(rows)


def canvas(grading: ClassGrades) -> str:
    """Canvas's gradebook: the first columns as it exports them, one column of points, the row of possible points."""
    head = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
    rows: list[list] = [[*head, grading.assignment], ["    Points Possible", "", "", "", "", grading.out_of]]
    rows += [[*_who(graded), "", "", "", _blank_or(graded, graded.total)] for graded in grading.students]
    return to_text(rows)


PLATFORMS = {"moodle": moodle, "canvas": canvas}


def gradescope_results(grading: ClassGrades, graded: GradedSubmission) -> str:
    """`results.json` of one submission, as an autograder leaves it for Gradescope."""
    tests = []
    for name, verdict in graded.verdicts.items():
        sentences = [part.text for part in verdict.parts if part.kind != "expected"]
        state = graded.state(grading.exercises[name])
        tests.append(
            {
                "name": name, "score": graded.points[name], "max_score": grading.exercises[name].points,
                "status": "passed" if state == "right" else "failed", "output": "\n\n".join(sentences),
                "output_format": "text",
            }
        )  # fmt: skip
    content = {"score": graded.total, "output": "\n".join(graded.remarks), "tests": tests, "visibility": "visible"}
    return json.dumps(content, indent=1) + "\n"
