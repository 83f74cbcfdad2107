"""The marks as tables: one for every spreadsheet, and what Moodle, Canvas and Gradescope's autograder take."""

import csv
import io
import json

from grpo_lab.course.grading.grade import Graded, Grading

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet would compute
MARK = "\ufeff"  # at the beginning of a file: without it, Excel reads names with accents as something else


def grades(grading: Grading) -> str:
    """grades.csv: a row a student, with points for each function, the sum, what could be earned, and remarks."""
    names = list(grading.exercises)
    rows: list[list] = [["student", "id", *names, "points", "out of", "remarks"]]
    for one in grading.students:
        points = [f"{one.points[name]:g}" for name in names]
        said = "; ".join(one.remarks)
        rows.append([*_who(one), *points, f"{one.total:g}", grading.out_of, said])
    return MARK + to_text(rows)


def to_text(rows: list[list]) -> str:
    """CSV of the rows. A spreadsheet takes a cell that begins with `=` for a formula: it gets a quotation mark."""
    paper = io.StringIO()
    safe = [[f"'{cell}" if isinstance(cell, str) and cell[:1] in FORMULA else cell for cell in row] for row in rows]
    csv.writer(paper, lineterminator="\n").writerows(safe)
    return paper.getvalue()


def _who(one: Graded) -> list[str]:
    return [one.submission.student, one.submission.number]


def moodle(grading: Grading) -> str:
    """Moodle's grading worksheet. Its identifier is the number in the names of a download."""
    rows: list[list] = [["Identifier", "Full name", "Email address", "Grade", "Maximum Grade"]]
    for one in grading.students:
        student, number = _who(one)
        rows.append([f"Participant {number}" if number else "", student, "", f"{one.total:g}", grading.out_of])
    return to_text(rows)


def canvas(grading: Grading) -> str:
    """Canvas's gradebook: the first columns as it exports them, one column of points, the row of possible points."""
    head = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
    rows: list[list] = [[*head, grading.assignment], ["    Points Possible", "", "", "", "", grading.out_of]]
    rows += [[*_who(one), "", "", "", f"{one.total:g}"] for one in grading.students]
    return to_text(rows)


PLATFORMS = {"moodle": moodle, "canvas": canvas}


def gradescope_results(grading: Grading, one: Graded) -> str:
    """`results.json` of one submission, as an autograder leaves it for Gradescope."""
    tests = []
    for name, verdict in one.verdicts.items():
        told = [part.text for part in verdict.parts if part.kind != "expected"]
        state = one.state(grading.exercises[name])
        tests.append(
            {
                "name": name, "score": one.points[name], "max_score": grading.exercises[name].points,
                "status": "passed" if state == "right" else "failed", "output": "\n\n".join(told),
                "output_format": "text",
            }
        )  # fmt: skip
    content = {"score": one.total, "output": "\n".join(one.remarks), "tests": tests, "visibility": "visible"}
    return json.dumps(content, indent=1) + "\n"
