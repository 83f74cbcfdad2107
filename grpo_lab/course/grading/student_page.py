"""The page of HTML for each student. It quotes what the student wrote, so all of its texts are escaped."""

import html

from grpo_lab import __version__
from grpo_lab.base.language import _, fill, language
from grpo_lab.course.checking.verdict import PartKind, part_html
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.grading.class_grades import AnswerState, ClassGrades, GradedSubmission

STYLE = """
:root { color-scheme: light dark; --line: #d0d0d0; --right: #00724f; --wrong: #b24a00; --none: #666; --quiet: #f4f4f4; }
@media (prefers-color-scheme: dark) {
  :root { --line: #555; --right: #4cc9a0; --wrong: #ff9d5c; --none: #aaa; --quiet: #2a2a2a; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 54rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
td.n, th.n { text-align: right; } td.n { white-space: nowrap; }
th { vertical-align: bottom; } .up { padding: .3rem; } .up code { writing-mode: vertical-rl; rotate: 180deg; }
.why { font-size: .85rem; line-height: 1.35; }
section { margin-top: 1.8rem; } h2 { font-size: 1.15rem; margin: 0 0 .4rem; }
.right { color: var(--right); } .wrong, .partly { color: var(--wrong); } .none { color: var(--none); }
pre { background: var(--quiet); padding: .7rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
.quiet { color: var(--none); font-size: .9rem; }
td.bar { width: 34%; white-space: nowrap; } td.bar i { display: inline-block; height: .8em; }
i.right { background: #009e73; } i.partly { background: #e69f00; } i.wrong { background: #d55e00; }
i.none { background: #999; }
"""
STATES = {
    AnswerState.RIGHT: "✓ right",
    AnswerState.PARTLY: "◐ partly right",
    AnswerState.WRONG: "✗ not right",
    AnswerState.NOT_BEGUN: "· not begun",
}


def state_in_words(state: AnswerState) -> str:
    """Return the sign of a state and its word in the reader's language."""
    return f"{STATES[state][:2]}{_(STATES[state][2:])}"


def escaped(text) -> str:
    """Escape a text from a stranger for HTML."""
    return html.escape(str(text))


def html_page(title: str, body: str) -> str:
    """Return a whole page of HTML in the common style, which has a light and a dark form. It loads no other file."""
    return (
        f'<!doctype html>\n<html lang="{language().replace("_", "-")}">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escaped(title)}</title><style>{STYLE}</style></head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def student_page(graded: GradedSubmission, grades: ClassGrades) -> str:
    """Return the page of a student: the state of each function, on which input it is wrong, and by which mistake."""
    exercises = grades.exercises
    body = [f"<h1>{escaped(graded.submission.student)}</h1>"]
    body.append(
        f"<p><strong>{_(fill('{0} of {1} points.', format(graded.total, 'g'), grades.max_points))}</strong></p>"
    )
    body += [f"<p>{escaped(remark)}.</p>" for remark in graded.notes]
    if not graded.submission.problem:
        rows = [_row(graded, exercise) for exercise in exercises.values()]
        head = f'<tr><th>{_("function")}</th><th>{_("result")}</th><th class="n">{_("points")}</th></tr>'
        body.append("\n".join(["<table>", head, *rows, "</table>"]))
        body += [_section(graded, name) for name in exercises if graded.state(exercises[name]) != AnswerState.NOT_BEGUN]
    if graded.failed_cells:
        failed = "".join(f"<li>{escaped(_(fill('cell {0}: {1}', *cell)))}</li>" for cell in graded.failed_cells.items())
        body.append(f"<section><h2>{_('Cells that failed')}</h2><ul>{failed}</ul></section>")
    note = fill(
        "Each function ran on the inputs that you see in your notebook, and on fresh ones (seed {0}, grpo_lab {1}). "
        "The points are for functions; your teacher reads the rest.",
        graded.seed,
        __version__,
    )
    body.append(f'<p class="quiet">{escaped(_(note))}</p>')
    return html_page(graded.submission.student, "\n".join(body))


def _row(graded: GradedSubmission, exercise: Exercise) -> str:
    state, name = graded.state(exercise), f"<code>{escaped(exercise.name)}</code>"
    link = name if state == AnswerState.NOT_BEGUN else f'<a href="#{escaped(exercise.name)}">{name}</a>'
    points = f'<td class="n">{_(fill("{0} of {1}", format(graded.points[exercise.name], "g"), exercise.points))}</td>'
    return f'<tr><td>{link}</td><td><span class="{state}">{state_in_words(state)}</span></td>{points}</tr>'


def _section(graded: GradedSubmission, name: str) -> str:
    """Return the section of an exercise: the verdict and the student's code, without the expected values."""
    verdict = graded.verdicts[name]
    parts = [f'<section id="{escaped(verdict.exercise)}"><h2><code>{escaped(verdict.exercise)}</code></h2>']
    if not verdict.right:
        parts += [part_html(part) for part in verdict.parts if part.kind != PartKind.EXPECTED]
    parts += [
        f"<p>{escaped(_(fill('Look at Eq. ({0}).', part.tag)))}</p>"
        for part in verdict.folded_parts
        if part.kind == PartKind.EQUATION
    ]
    if verdict.misconceptions:
        parts.append(f'<p class="quiet">{escaped(_(fill("Known as: {0}.", ", ".join(verdict.misconceptions))))}</p>')
    code = "\n\n".join(cell.source for cell in graded.submission.code_of(name))
    parts.append(f"<details><summary>{_('The code')}</summary><pre>{escaped(code)}</pre></details>")
    return "\n".join([*parts, "</section>"])
