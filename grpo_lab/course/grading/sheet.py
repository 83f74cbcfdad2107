"""Sheets for written answers: one page a question, all answers and the rubric on it; and a CSV for the points."""

import json
from dataclasses import replace
from pathlib import Path

import grpo_lab
from grpo_lab.course.grading.grade import Grading
from grpo_lab.course.grading.pages import document, safe
from grpo_lab.course.grading.records import write_whole
from grpo_lab.course.grading.report import remove_others
from grpo_lab.course.grading.results import SHEET, Extras, Override, questions, read_points
from grpo_lab.course.grading.tables import to_text
from grpo_lab.course.release.written import Question

COLUMNS = ("student", "question", "points", "comment")
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
            if text := one.submission.written.get(question.name):
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
    """`written/<question>.html` for each question, and `written.csv`, in which all stays that was typed into it."""
    (folder / "written").mkdir(parents=True, exist_ok=True)
    remove_others(folder / "written", [f"{question.name}.html" for question in questions(grading)])
    others = list(dict.fromkeys(column for given in extras.written.values() for column in given.other))
    rows: list[list] = [[*COLUMNS, *others]]
    for question in questions(grading):
        found = answers(grading, question)
        write_whole(folder / "written" / f"{question.name}.html", _page(question, found, rubric.get(question.name, [])))
        without = [student for student, name in extras.written if name == question.name and student not in found]
        for student in [*found, *without]:
            given = extras.written.get((student, question.name), Override(None, ""))
            points = "" if given.points is None else f"{given.points:.12g}"
            more = [given.other.get(column, "") for column in others]
            rows.append([student, question.name, points, given.reason, *more])
    write_whole(folder / SHEET, to_text(rows, for_people=True))


def read_sheets(folder: Path, given: Path | None, named) -> tuple[dict[tuple[str, str], Override], list[str]]:
    """What has been typed into `written.csv` in the folder, and over it what stands in the given file.

    named: called with the points by (student, question), puts names in the place of pseudonyms.

    Returns:
        The points, and a sentence for each that was there before and is another now.

    Raises:
        ValueError: for a file that is no such table.
    """
    here = folder / SHEET
    found = named(_read(here)) if here.exists() else {}
    if given is None or (here.exists() and here.samefile(given)):
        return found, []
    told = []
    for key, new in named(_read(given)).items():
        old = found.get(key, Override(None, ""))
        whole = Override(new.points if new.points is not None else old.points, new.reason or old.reason)
        for was, is_ in ((old.points, whole.points), (old.reason or None, whole.reason)):
            if was not in (None, is_):
                told.append(f"{key[1]} of {key[0]}: {was!r} in {here} becomes {is_!r}, as in {given}")
        found[key] = replace(whole, other=old.other | new.other)
    return found, told


def _read(path: Path) -> dict[tuple[str, str], Override]:
    return read_points(path, "written", "question", "comment", needs_reason=False)


def _page(question: Question, found: dict[str, str], wanted: list[str]) -> str:
    items = (
        "".join(f"<li>{safe(item)}</li>" for item in wanted) or "<li>no rubric was found: name one with --rubric</li>"
    )
    shares = "".join(f"<tr><td>{safe(share)}</td><td>{safe(what)}</td></tr>" for share, what in RUBRIC)
    body = [
        f"<h1>{safe(question.name)} · {question.points} points</h1><p>{safe(question.text)}</p>",
        f"<aside><h2>A full answer</h2><ul>{items}</ul><table><tr><th>points</th><th>the answer</th></tr>{shares}"
        "</table></aside>",
        f"<p>{len(found)} answers. Points go into <code>{SHEET}</code>, beside this folder; then <code>grade --resume"
        "</code> brings them into the totals.</p>",
    ]
    body += [f"<section><h3>{safe(student)}</h3><pre>{safe(text)}</pre></section>" for student, text in found.items()]
    return document(question.name, "\n".join(body))
