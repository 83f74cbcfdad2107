"""The page of a class, for the teacher: who is behind and why, which mistakes were made, what to talk about."""

import json
import textwrap
from collections import Counter
from pathlib import Path
from urllib.parse import quote

import grpo_lab
from grpo_lab.course.checking.shown import count
from grpo_lab.course.checking.verdict import html_of
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.grading.grade import Graded, Grading
from grpo_lab.course.grading.similar import similar
from grpo_lab.course.grading.studentpage import STATES, html_page, safe
from grpo_lab.course.release.notebooks import question

TO_DISCUSS = 2  # mistakes proposed for the next lecture
RUBRIC = Path(grpo_lab.__file__).parents[1] / "notebooks" / "assignments" / "rubric.json"  # of a checkout, for teachers
Lost = tuple[Exercise, str, int, float]  # an exercise, a known mistake, how many made it, the points that it cost them


def mistakes(grading: Grading) -> list[Lost]:
    """Every known mistake that somebody made, the one that cost most first.

    An answer in which several mistakes were recognised counts for each of them, and they share its points.
    """
    students: Counter[tuple[str, str]] = Counter()
    cost: Counter[tuple[str, str]] = Counter()
    for one in grading.handed_in:
        for name, verdict in one.verdicts.items():
            exercise = grading.exercises[name]
            named = [mistake for mistake in verdict.misconceptions if mistake in exercise.misconceptions]
            for mistake in named:
                students[name, mistake] += 1
                cost[name, mistake] += (exercise.points - one.points[name]) / len(named)
    found = [(grading.exercises[e], name, n, round(cost[e, name], 1)) for (e, name), n in students.items()]
    return sorted(found, key=lambda lost: (-lost[3], lost[0].name, lost[1]))


def to_discuss(lost: list[Lost]) -> list[Lost]:
    """The mistakes that cost most, of different exercises."""
    first = {one[0].name: one for one in reversed(lost)}
    return [one for one in lost if first[one[0].name] is one][:TO_DISCUSS]


def averaged(grading: Grading) -> str:
    """How many could be graded, and their mean."""
    graded = grading.handed_in
    mean = sum(one.total for one in graded) / max(1, len(graded))
    told = f"{mean:.3g} of {grading.out_of} points on average of {len(graded)}"
    return f"{told}; {len(grading.students) - len(graded)} could not be graded" if graded != grading.students else told


def to_look_at(grading: Grading) -> list[str]:
    """What was handed in otherwise than expected, by student; the rest stands on the page."""
    return [f"{one.submission.student}: {'; '.join(one.notes)}" for one in grading.students if one.notes]


def class_page(grading: Grading, pages: list[str]) -> str:
    """pages: the file names of the students' pages, in their order."""
    body = [
        f"<h1>{safe(grading.assignment)}: {count(len(grading.students), 'student')}</h1>",
        f'<p>{averaged(grading)}. Seed {grading.seed}. <a href="written.html">The answers in words</a>.</p>',
        _students(grading, pages),
        _mistakes(mistakes(grading)),
        _exercises(grading),
        _alike(similar(grading)),
    ]
    return html_page("The class", "\n".join(part for part in body if part))


def _exercises(grading: Grading) -> str:
    """For each exercise how many were right, partly right, not right, not begun: as a bar and in numbers."""
    rows, n = [], max(1, len(grading.handed_in))
    for exercise in grading.exercises.values():
        states = Counter(one.state(exercise) for one in grading.handed_in)
        mean = sum(one.points[exercise.name] for one in grading.handed_in) / n
        bar = "".join(f'<i class="{state}" style="width:{100 * states[state] / n:.1f}%"></i>' for state in STATES)
        cells = "".join(f'<td class="n">{states[state]}</td>' for state in STATES)
        cells += f'<td class="n">{mean:.1f} of {exercise.points}</td>'
        rows.append(f'<tr><td><code>{safe(exercise.name)}</code></td><td class="bar">{bar}</td>{cells}</tr>')
    words = "".join(f"<th class='n'>{word}</th>" for word in [*STATES.values(), "points"])
    return _table("Functions", f"<th>function</th><th></th>{words}", rows)


def _students(grading: Grading, pages: list[str]) -> str:
    """Who has the fewest points comes first."""
    rows = []
    for one, page in sorted(zip(grading.students, pages, strict=True), key=lambda pair: pair[0].total):
        link = f'<a href="students/{safe(quote(page))}">{safe(one.submission.student)}</a>'
        signs = "".join(_state(one.state(exercise)) for exercise in grading.exercises.values())
        said = "<br>".join(html_of(text) for text in reasons(one, grading))
        rows.append(f'<tr><td>{link}</td><td class="n">{one.total:g}</td>{signs}<td class="why">{said}</td></tr>')
    words = "".join(f"<th class='up'><code>{safe(name)}</code></th>" for name in grading.exercises)
    head = f"<th>student</th><th class='n'>points</th>{words}<th>why</th>"
    return _table("Students, those who are behind first", head, rows)


def reasons(one: Graded, grading: Grading) -> list[str]:
    """What stands between a student and all of the points, in a few words each."""
    said = [*one.notes, *(f"cell {number}: {why}" for number, why in one.cells.items())]
    for name, verdict in one.verdicts.items():
        if one.state(grading.exercises[name]) in ("partly", "wrong"):
            first = verdict.message.partition(". ")[0].replace("`", "")
            said.append(f"`{name}`: {', '.join(verdict.misconceptions) or first}")
    untouched = {one.state(exercise) for exercise in grading.exercises.values()} == {"none"}
    said += ["nothing was begun"] * (untouched and not one.submission.problem)
    return [textwrap.shorten(text, 110, placeholder=" …") for text in said]


def _state(state: str) -> str:
    return f'<td class="{state}" title="{STATES[state][2:]}">{STATES[state][0]}</td>'


def written_page(grading: Grading) -> str:
    """The question in words, what a full answer has, and what each student wrote."""
    number = grading.assignment[:2]
    body = [f"<h1>{safe(grading.assignment)}, in words</h1>", f"<p>{html_of(question(number))}</p>"]
    if RUBRIC.is_file():
        full = json.loads(RUBRIC.read_text(encoding="utf-8"))[number]
        body.append(f"<h2>A full answer has</h2><ul>{''.join(f'<li>{html_of(one)}</li>' for one in full)}</ul>")
    handed_in = [one.submission for one in grading.students]
    wrote = [one for one in handed_in if one.written]
    body += [f"<section><h2>{safe(one.student)}</h2><pre>{safe(one.written)}</pre></section>" for one in wrote]
    nothing = ", ".join(one.student for one in handed_in if not one.written)
    body += [f"<p>Nothing written: {safe(nothing)}.</p>"] * bool(nothing)
    return html_page("In words", "\n".join(body))


def _mistakes(lost: list[Lost]) -> str:
    """Those that are proposed for the next lecture stand out."""
    rows = []
    for exercise, name, students, points in lost:
        says = html_of(exercise.misconceptions[name].says)
        told = f"<b>{safe(name)}</b>: {says}" if (exercise, name, students, points) in to_discuss(lost) else safe(name)
        cells = f'<td><code>{safe(exercise.name)}</code></td><td>{told}</td><td class="n">{students}</td>'
        rows.append(f'<tr>{cells}<td class="n">{points:g}</td></tr>')
    head = "<th>function</th><th>known mistake</th><th class='n'>students</th><th class='n'>points lost</th>"
    return _table("For the next lecture: mistakes that were recognised", head, rows) if rows else ""


def _table(title: str, head: str, rows: list[str]) -> str:
    return f"<section><h2>{title}</h2><table><tr>{head}</tr>{''.join(rows)}</table></section>"


def _alike(groups: list[tuple[list[str], list[str]]]) -> str:
    hint = "A hint, and no proof: short right answers are often alike, and people may work together where you allow it."
    rows = [f"<li>{safe(', '.join(students))}: {safe(', '.join(names))}</li>" for students, names in groups]
    body = f'<p class="quiet">{hint}</p><ul>{"".join(rows)}</ul>'
    return f"<section><h2>Answers of the same shape</h2>{body}</section>" if rows else ""
