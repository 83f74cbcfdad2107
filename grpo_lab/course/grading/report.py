"""The results on paper: grades.csv, grades.json, and a page of HTML for each student, in one folder.

What a student wrote is quoted on these pages, so everything is escaped; and a spreadsheet takes a cell that begins with
`=` for a formula, so such a name gets a quotation mark in front.
"""

import json
import re
from pathlib import Path

from grpo_lab import __version__
from grpo_lab.course.checking.verdict import Part, count, prose
from grpo_lab.course.grading.grade import Grading
from grpo_lab.course.grading.marks import Graded, Mark
from grpo_lab.course.grading.pages import document, safe
from grpo_lab.course.grading.records import write_whole
from grpo_lab.course.grading.results import Extras, Result, out_of, questions, results
from grpo_lab.course.grading.tables import to_text
from grpo_lab.course.release.written import Question

WORDS = {
    "wrong": "not right", "form": "not right", "endless": "stopped: no end", "exit": "ended its process",
    "broken": "could not be run", "unreadable": "could not be read", "lost": "no result", "unreached": "out of time",
    "start": "not graded",
}  # fmt: skip
EXPECTED = "What is expected:"


def write_report(
    grading: Grading, folder: Path, extras: Extras | None = None, found: list[Result] | None = None
) -> Path:
    """Write everything; each file whole or not at all. Pages of an earlier grading go. Returns the folder.

    found: the results, where they have been put together already.
    """
    extras = extras or Extras()
    found = results(grading, extras) if found is None else found
    (folder / "students").mkdir(parents=True, exist_ok=True)
    write_whole(folder / "grades.csv", to_csv(grading, found))
    write_whole(folder / "grades.json", json.dumps(to_json(grading, found), indent=1, ensure_ascii=False) + "\n")
    names = page_names([one.student for one in found])
    remove_others(folder / "students", names)
    for one, name in zip(found, names, strict=True):
        write_whole(folder / "students" / name, page(one, grading, extras))
    return folder


def remove_others(folder: Path, names: list[str]) -> None:
    """The pages of a former grading: they would tell names behind pseudonyms, and marks that hold no longer."""
    for path in folder.glob("*.html"):
        if path.name not in names:
            path.unlink()


def page_names(students: list[str]) -> list[str]:
    """A file name for each student, short, without anything that means something in a path, and no two alike."""
    names: list[str] = []
    for student in students:
        plain = re.sub(r"[^\w.-]", "_", student).lstrip(".")[:60]
        plain = plain.encode()[:150].decode(errors="ignore") or "student"  # a file system counts bytes
        taken = {name.lower() for name in names}
        options = [f"{plain}.html", *(f"{plain}-{n}.html" for n in range(2, 10_000))]
        names.append(next(option for option in options if option.lower() not in taken))
    return names


def to_csv(grading: Grading, found: list[Result]) -> str:
    """One row a student: points for each function and question, the sum, what could be earned, and what went wrong.

    An empty cell is a written answer that nobody has marked yet, or what an interrupted grading has not come to.
    """
    columns = [e.name for e in grading.exercises] + [question.name for question in questions(grading)]
    rows: list[list] = [["student", "id", "email", "group", *columns, "days late", "points", "out of", "remarks"]]
    for one in found:
        own = [one.person.id, one.person.email, one.person.group] if one.person else ["", "", ""]
        points = ["" if one.points[name] is None else plain(one.points[name]) for name in columns]
        total = "" if one.ungraded else plain(one.total)
        rows.append([one.student, *own, *points, one.late, total, out_of(grading), "; ".join(one.said)])
    return to_text(rows, for_people=True)


def plain(points: int | float) -> int | float:
    """6 rather than 6.0."""
    return int(points) if points == int(points) else points


def to_json(grading: Grading, found: list[Result]) -> dict:
    return {
        "seed": grading.seed,
        "grpo_lab": __version__,
        "finished": grading.finished,
        "walls": {name: why or "up" for name, why in grading.walls.items()},
        "out_of": out_of(grading),
        "doubts": grading.doubts,
        "students": {
            one.student: {
                "id": one.person.id if one.person else "",
                "points": None if one.ungraded else plain(one.total),
                "before lateness": plain(one.earned),
                "days late": one.late,
                "not marked yet": one.unmarked,
                "set by the teacher": {
                    name: {"points": given.points, "reason": given.reason} for name, given in one.overridden.items()
                },
                "remarks": one.remarks,
                "notebooks": [_notebook_json(graded) for graded in one.graded],
            }
            for one in found
        },
    }


def _notebook_json(one: Graded) -> dict:
    return {
        "file": one.submission.name,
        "assignment": one.submission.assignment,
        "problem": one.submission.problem,
        "notes": one.submission.notes,
        "cells that failed": one.cells,
        "exercises": {mark.exercise.name: _mark_json(mark) for mark in one.marks},
        "written answers": one.submission.written,
    }


def _mark_json(mark: Mark) -> dict:
    return {
        "points": mark.points,
        "out of": mark.exercise.points,
        "status": mark.status,
        "misconceptions": list(mark.verdict.misconceptions) if mark.verdict else [],
        "message": mark.message,
        "note": mark.note,
    }


def page(one: Result, grading: Grading, extras: Extras) -> str:
    """A student's page."""
    marks = [mark for graded in one.graded for mark in graded.marks]
    total = "No points yet" if one.ungraded else f"{plain(one.total)} of {out_of(grading)} points"
    body = [
        f"<h1>{safe(one.student)}</h1>",
        f"<p><strong>{total}.</strong></p>",
    ]
    if one.late and extras.deadline:
        body.append(
            f"<p>{count(one.earned, 'point')}, {count(one.late, 'day')} late. {safe(extras.deadline.rule())}</p>"
        )
    body += [f"<p>{safe(remark)}.</p>" for remark in one.remarks]
    body += [_table(marks, one, grading)] if marks or one.overridden or any(one.points.values()) else []
    body += [_section(mark) for mark in marks if mark.kind == "wrong"]
    body += [_written(one, question) for question in questions(grading) if one.graded or question.name in one.written]
    body += [_cells(graded) for graded in one.graded if graded.cells]
    body.append(
        f'<p class="quiet">Each function ran on the inputs that you see in your notebook, and on fresh ones (seed '
        f"{grading.seed}, grpo_lab {safe(__version__)}). Written answers are marked by hand.</p>"
    )
    return document(one.student, "\n".join(body))


SET = '<div class="quiet">points set by your teacher</div>'


def _table(marks: list[Mark], one: Result, grading: Grading) -> str:
    rows = [
        f'<tr><td>{_link(m)}</td><td><span class="{m.kind}">{_symbol(m)} {safe(WORDS.get(m.status, m.status))}</span>'
        f"{_note(m)}{SET if m.exercise.name in one.overridden else ''}</td>"
        f'<td class="n">{plain(one.points[m.exercise.name])} of {m.exercise.points}</td></tr>'
        for m in marks
    ]
    marked = {mark.exercise.name for mark in marks}
    rows += [
        f"<tr><td><code>{safe(e.name)}</code></td><td>{SET}</td>"
        f'<td class="n">{plain(one.points[e.name])} of {e.points}</td></tr>'
        for e in grading.exercises
        if e.name in one.overridden and e.name not in marked
    ]
    for question in questions(grading):
        points = one.points[question.name]
        said = "not marked yet" if points is None else f"{plain(points)} of {question.points}"
        link = f'<a href="#{safe(question.name)}">{safe(question.name)}</a>'
        rows.append(f'<tr><td>{link}</td><td>written answer</td><td class="n">{said}</td></tr>')
    head = '<table><tr><th>function</th><th>result</th><th class="n">points</th></tr>'
    told = [
        f'<p class="quiet">Set by your teacher: <code>{safe(name)}</code> to {given.points:g}. {safe(given.reason)}</p>'
        for name, given in one.overridden.items()
    ]
    return "\n".join([head, *rows, "</table>", *told])


def _written(one: Result, question: Question) -> str:
    """A question, what the student wrote, and what the teacher says about it."""
    texts = [graded.submission.written.get(question.name, "") for graded in one.graded]
    answer, given = next((text for text in texts if text), ""), one.written.get(question.name)
    parts = [f'<section id="{safe(question.name)}"><h2>{safe(question.name)}</h2><p>{prose(question.text)}</p>']
    parts.append(f"<p>You wrote:</p><pre>{safe(answer)}</pre>" if answer else "<p>No written answer was found.</p>")
    if given and given.reason:
        parts.append(f"<p><strong>Your teacher:</strong> {safe(given.reason)}</p>")
    return "\n".join([*parts, "</section>"])


def _link(mark: Mark) -> str:
    name = f"<code>{safe(mark.exercise.name)}</code>"
    return name if mark.kind != "wrong" else f'<a href="#{safe(mark.exercise.name)}">{name}</a>'


def _note(mark: Mark) -> str:
    return f'<div class="quiet">{prose(mark.note)}</div>' if mark.note else ""


def _section(mark: Mark) -> str:
    """What went wrong. Neither what is expected nor anything of the fresh inputs stands here."""
    parts = [f'<section id="{safe(mark.exercise.name)}"><h2><code>{safe(mark.exercise.name)}</code></h2>']
    if mark.verdict is None or mark.hidden:
        parts += [f"<p>{prose(line)}</p>" for line in mark.message.splitlines() if line.strip()]
    else:
        parts += [_part(part) for part in mark.verdict.parts if part.title != EXPECTED]
    if mark.verdict is not None and mark.verdict.misconceptions:
        parts.append(f'<p class="quiet">Known as: {safe(", ".join(mark.verdict.misconceptions))}.</p>')
    return "\n".join([*parts, "</section>"])


def _part(part: Part) -> str:
    if part.kind == "values":
        return f"<p>{prose(part.title)}</p><pre>{safe(part.text)}</pre>"
    if part.kind == "equation":
        return f"<p>Look at Eq. ({safe(part.title)}).</p>"
    return f"<p>{prose(part.text)}</p>"


def _cells(one: Graded) -> str:
    rows = "".join(f"<li>cell {safe(n)}: {safe(why)}</li>" for n, why in one.cells.items())
    return f"<section><h2>Cells that failed in {safe(one.submission.name)}</h2><ul>{rows}</ul></section>"


def _symbol(mark: Mark) -> str:
    return {"right": "✓", "none": "·", "wrong": "✗"}[mark.kind]
