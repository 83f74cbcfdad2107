"""The results on paper: grades.csv, grades.json, and a page of HTML for each student, in one folder.

What a student wrote is quoted on these pages, so everything is escaped; and a spreadsheet takes a cell that begins with
`=` for a formula, so such a name gets a quotation mark in front.
"""

import csv
import html
import io
import json
import os
import re
from pathlib import Path

from grpo_lab import __version__
from grpo_lab.course.checking.verdict import Part, prose
from grpo_lab.course.grading.grade import Graded, Grading, Mark

WORDS = {
    "wrong": "not right", "form": "not right", "endless": "stopped: no end", "exit": "ended its process",
    "broken": "could not be run", "unreadable": "could not be read", "lost": "no result", "unreached": "out of time",
    "start": "not graded",
}  # fmt: skip
EXPECTED = "What is expected:"


def write_report(grading: Grading, folder: Path) -> Path:
    """Write everything; each file whole or not at all. Returns the folder."""
    (folder / "students").mkdir(parents=True, exist_ok=True)
    _write(folder / "grades.csv", to_csv(grading))
    _write(folder / "grades.json", json.dumps(to_json(grading), indent=1, ensure_ascii=False) + "\n")
    for student, name in page_names(list(grading.students)).items():
        _write(folder / "students" / name, page(student, grading.students[student], grading))
    return folder


def page_names(students: list[str]) -> dict[str, str]:
    """A file name for each student, without anything that means something in a path, and no two alike."""
    names: dict[str, str] = {}
    for student in students:
        plain = re.sub(r"[^\w.-]", "_", student).lstrip(".")[:60] or "student"
        taken = {name.lower() for name in names.values()}
        options = [f"{plain}.html", *(f"{plain}-{n}.html" for n in range(2, 10_000))]
        names[student] = next(option for option in options if option.lower() not in taken)
    return names


def to_csv(grading: Grading) -> str:
    """One row a student: points for each exercise, the sum, what could be earned, and what went wrong as a whole."""
    paper = io.StringIO()
    writer = csv.writer(paper, lineterminator="\n")
    names = [exercise.name for exercise in grading.exercises]
    out_of = sum(exercise.points for exercise in grading.exercises)
    writer.writerow(["student", *names, "points", "out of", "remarks"])
    for student, graded in grading.students.items():
        points = {mark.exercise.name: mark.points for one in graded for mark in one.marks}
        total = sum(points.values())
        row = [student, *(points.get(name, 0) for name in names), total, out_of, "; ".join(remarks(graded))]
        writer.writerow([_for_spreadsheet(cell) for cell in row])
    return paper.getvalue()


def remarks(graded: list[Graded]) -> list[str]:
    found = []
    for one in graded:
        name = one.submission.path.name
        found += [f"{name}: {one.submission.problem}"] if one.submission.problem else []
        found += [f"{name}: {note}" for note in one.submission.notes]
        found += [f"{name}: cell {number} failed" for number in one.cells]
    return found


def _for_spreadsheet(cell):
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


def to_json(grading: Grading) -> dict:
    return {
        "seed": grading.seed,
        "grpo_lab": __version__,
        "walls": {name: why or "up" for name, why in grading.walls.items()},
        "out_of": sum(exercise.points for exercise in grading.exercises),
        "students": {
            student: {
                "points": sum(one.points for one in graded),
                "notebooks": [_notebook_json(one) for one in graded],
            }
            for student, graded in grading.students.items()
        },
    }


def _notebook_json(one: Graded) -> dict:
    return {
        "file": one.submission.path.name,
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
    }


STYLE = """
:root { color-scheme: light dark; --line: #d0d0d0; --right: #00724f; --wrong: #b24a00; --none: #666; --quiet: #f4f4f4; }
@media (prefers-color-scheme: dark) {
  :root { --line: #555; --right: #4cc9a0; --wrong: #ff9d5c; --none: #aaa; --quiet: #2a2a2a; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
td.n, th.n { text-align: right; } section { border-top: 1px solid var(--line); margin-top: 1.5rem; padding-top: .5rem; }
.right { color: var(--right); } .wrong { color: var(--wrong); } .none { color: var(--none); }
pre { background: var(--quiet); padding: .7rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
.quiet { color: var(--none); font-size: .9rem; }
"""


def page(student: str, graded: list[Graded], grading: Grading) -> str:
    """A student's page: self-contained, readable without a network, light or dark as the reader likes."""
    marks = [mark for one in graded for mark in one.marks]
    total, out_of = sum(mark.points for mark in marks), sum(exercise.points for exercise in grading.exercises)
    body = [f"<h1>{_safe(student)}</h1>", f"<p><strong>{total} of {out_of} points</strong> for the functions.</p>"]
    body += [f"<p>{_safe(remark)}.</p>" for remark in remarks(graded)]
    body += [_table(marks)] if marks else []
    body += [_section(mark) for mark in marks if _class(mark) == "wrong"]
    body += [_cells(one) for one in graded if one.cells]
    body.append(
        f'<p class="quiet">Each function ran on the inputs that you see in your notebook, and on fresh ones (seed '
        f"{grading.seed}, grpo_lab {_safe(__version__)}). Written answers are marked by hand.</p>"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_safe(student)}</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _table(marks: list[Mark]) -> str:
    rows = "\n".join(
        f'<tr><td>{_link(m)}</td><td class="{_class(m)}">{_symbol(m)} {_safe(WORDS.get(m.status, m.status))}</td>'
        f'<td class="n">{m.points} of {m.exercise.points}</td></tr>'
        for m in marks
    )
    return f'<table><tr><th>function</th><th>result</th><th class="n">points</th></tr>\n{rows}\n</table>'


def _link(mark: Mark) -> str:
    name = f"<code>{_safe(mark.exercise.name)}</code>"
    return name if _class(mark) != "wrong" else f'<a href="#{_safe(mark.exercise.name)}">{name}</a>'


def _section(mark: Mark) -> str:
    """What went wrong. Neither what is expected nor anything of the fresh inputs stands here."""
    parts = [f'<section id="{_safe(mark.exercise.name)}"><h2><code>{_safe(mark.exercise.name)}</code></h2>']
    if mark.verdict is None or mark.hidden:
        parts += [f"<p>{prose(line)}</p>" for line in mark.message.splitlines() if line.strip()]
    else:
        parts += [_part(part) for part in mark.verdict.parts if part.title != EXPECTED]
    if mark.verdict is not None and mark.verdict.misconceptions:
        parts.append(f'<p class="quiet">Known as: {_safe(", ".join(mark.verdict.misconceptions))}.</p>')
    return "\n".join([*parts, "</section>"])


def _part(part: Part) -> str:
    if part.kind == "values":
        return f"<p>{prose(part.title)}</p><pre>{_safe(part.text)}</pre>"
    if part.kind == "equation":
        return f"<p>Look at Eq. ({_safe(part.title)}).</p>"
    return f"<p>{prose(part.text)}</p>"


def _cells(one: Graded) -> str:
    rows = "".join(f"<li>cell {_safe(n)}: {_safe(why)}</li>" for n, why in one.cells.items())
    return f"<section><h2>Cells that failed in {_safe(one.submission.path.name)}</h2><ul>{rows}</ul></section>"


def _class(mark: Mark) -> str:
    return "right" if mark.points else "none" if mark.status in ("not started", "missing") else "wrong"


def _symbol(mark: Mark) -> str:
    return {"right": "✓", "none": "·", "wrong": "✗"}[_class(mark)]


def _safe(text: str) -> str:
    return html.escape(str(text))


def _write(path: Path, text: str) -> None:
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(text, encoding="utf-8", newline="")
    os.replace(unfinished, path)
