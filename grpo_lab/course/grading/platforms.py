"""What learning platforms take back: grade files for Moodle and Canvas, and results in Gradescope's form."""

import json

from grpo_lab.course.grading.grade import Grading
from grpo_lab.course.grading.marks import Mark
from grpo_lab.course.grading.report import EXPECTED, plain
from grpo_lab.course.grading.results import Result, out_of, questions
from grpo_lab.course.grading.tables import to_text


def for_moodle(grading: Grading, found: list[Result]) -> str:
    """Moodle's grading worksheet. Its identifier is the roster's `moodle id`, or the number in a download's names."""
    rows: list[list] = [
        ["Identifier", "Full name", "Email address", "Grade", "Maximum Grade", "Feedback comments"],
    ]
    for one in found:
        person = one.person
        number = (person.moodle if person else "") or _number(one, "moodle")
        name, email = (person.name, person.email) if person else (one.student, "")
        comments = [f"{name}: {given.reason}" for name, given in one.written.items() if given.reason]
        said = "; ".join([*one.said, *comments])
        rows.append([f"Participant {number}" if number else "", name, email, plain(one.total), out_of(grading), said])
    return to_text(rows)


def for_canvas(grading: Grading, found: list[Result], assignment: str) -> str:
    """Canvas's gradebook: the first columns as it exports them, one column of points, the row of possible points.

    Its own numbers are those in the names of a download, or the roster's `canvas id` and `sis user id`.
    """
    rows: list[list] = [["Student", "ID", "SIS User ID", "SIS Login ID", "Section", assignment]]
    rows.append(["    Points Possible", "", "", "", "", out_of(grading)])
    for one in found:
        person = one.person
        own = [person.sis, person.email, person.group] if person else ["", "", ""]
        number = (person.canvas if person else "") or _number(one, "canvas")
        rows.append([person.name if person else one.student, number, *own, plain(one.total)])
    return to_text(rows)


def for_gradescope_import(grading: Grading, found: list[Result]) -> str:
    """The table that Gradescope takes for points given elsewhere: who, by e-mail and id, and how many."""
    rows: list[list] = [["Student ID", "Email", "Name", "Total Score", "Max Points"]]
    for one in found:
        number, email, name = (
            (one.person.id, one.person.email, one.person.name) if one.person else ("", "", one.student)
        )
        rows.append([number, email, name, plain(one.total), out_of(grading)])
    return to_text(rows)


def gradescope_results(grading: Grading, one: Result) -> str:
    """`results.json` of one submission, as an autograder leaves it for Gradescope."""
    marks = [mark for graded in one.graded for mark in graded.marks]
    tests = [_test(mark, one) for mark in marks]
    for question in questions(grading):
        tests.append(
            {
                "name": question.name,
                "score": one.points[question.name] or 0,
                "max_score": question.points,
                "output": "A written answer, marked by hand.",
                "output_format": "text",
            }
        )
    said = "\n".join([*one.remarks, *one.changed])
    content = {"score": one.total, "output": said, "tests": tests, "visibility": "visible"}
    return json.dumps(content, indent=1) + "\n"


def _test(mark: Mark, one: Result) -> dict:
    """One function. As on the student's page, neither what is expected nor anything of the fresh inputs is told."""
    message = mark.message
    if mark.verdict is not None and not mark.hidden:
        told = [f"{part.title}\n{part.text}" if part.title else part.text for part in mark.verdict.parts]
        message = "\n\n".join(
            text for text, part in zip(told, mark.verdict.parts, strict=True) if part.title != EXPECTED
        )
    return {
        "name": mark.exercise.name,
        "score": one.points[mark.exercise.name],
        "max_score": mark.exercise.points,
        "status": "passed" if mark.status == "right" else "failed",
        "output": "\n\n".join(text for text in (mark.note, message) if text),
        "output_format": "text",
    }


def _number(one: Result, platform: str) -> str:
    """What the platform put into the names of its download; another platform's number would name somebody else."""
    return next((g.submission.number for g in one.graded if g.submission.platform == platform), "")
