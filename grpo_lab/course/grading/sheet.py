"""Sheets for written answers: one page a question, all answers and the rubric on it; and a CSV for the points."""

import json
from pathlib import Path

import grpo_lab
from grpo_lab.course.grading.grade import Grading
from grpo_lab.course.grading.pages import document, safe
from grpo_lab.course.grading.records import write_whole
from grpo_lab.course.grading.results import Extras, is_answer, questions
from grpo_lab.course.grading.tables import to_text
from grpo_lab.course.release.written import Question

RUBRIC = (
    ("all", "has every item of the list, in the student's own words, with a reason or an example"),
    ("two thirds", "has the main item with its reason, and leaves out or blurs another"),
    ("one third", "has a right statement without a reason, or a reason for half of the question"),
    ("none", "restates the question, or contradicts the notebook"),
)


def answers(grading: Grading, question: Question) -> dict[str, str]:
    """The text of each student who wrote something."""
    found = {}
    for student, graded in grading.students.items():
        for one in graded:
            text = one.submission.written.get(question.name, "").strip()
            if is_answer(text):
                found[student] = text
    return found


def read_rubric(path: Path | None = None) -> dict[str, list[str]]:
    """What a full answer has, by question. It stands beside the teacher's guide, and not in what students get.

    path: None means that of the checkout in which this package lies; without one, there is none.

    Raises:
        ValueError: for a file that was named and is no such list.
    """
    place = path or Path(grpo_lab.__file__).resolve().parents[1] / "notebooks" / "assignments" / "rubric.json"
    if path is None and not place.is_file():
        return {}
    try:
        content = json.loads(place.read_text(encoding="utf-8"))
        return {str(name): [str(item) for item in items] for name, items in content.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        raise ValueError(f"rubric is {place}; expected a JSON file with a list of items for each question") from None


def write_sheets(grading: Grading, extras: Extras, folder: Path, rubric: dict[str, list[str]]) -> None:
    """`written/<question>.html` for each question, and `written.csv`, in which points that were given stay."""
    (folder / "written").mkdir(parents=True, exist_ok=True)
    rows: list[list] = [["student", "question", "points", "comment"]]
    for question in questions(grading):
        found = answers(grading, question)
        write_whole(folder / "written" / f"{question.name}.html", _page(question, found, rubric.get(question.name, [])))
        for student in found:
            given = extras.written.get((student, question.name))
            rows.append([student, question.name, f"{given.points:g}" if given else "", given.reason if given else ""])
    write_whole(folder / "written.csv", to_text(rows))


def _page(question: Question, found: dict[str, str], wanted: list[str]) -> str:
    items = (
        "".join(f"<li>{safe(item)}</li>" for item in wanted) or "<li>no rubric was found: name one with --rubric</li>"
    )
    shares = "".join(f"<tr><td>{safe(share)}</td><td>{safe(what)}</td></tr>" for share, what in RUBRIC)
    body = [
        f"<h1>{safe(question.name)} · {question.points} points</h1><p>{safe(question.text)}</p>",
        f"<aside><h2>A full answer</h2><ul>{items}</ul><table><tr><th>points</th><th>the answer</th></tr>{shares}"
        "</table></aside>",
        f"<p>{len(found)} answers. Points go into <code>written.csv</code>; then <code>grade --resume --written "
        "written.csv</code> brings them into the totals.</p>",
    ]
    body += [f"<section><h3>{safe(student)}</h3><pre>{safe(text)}</pre></section>" for student, text in found.items()]
    return document(question.name, "\n".join(body))
