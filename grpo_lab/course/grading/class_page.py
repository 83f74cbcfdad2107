"""The page of a class, for the teacher: who is behind and why, which mistakes were made, what to talk about."""

import json
import re
import textwrap
from collections import Counter
from pathlib import Path
from urllib.parse import quote

import grpo_lab
from grpo_lab.base.language import Phrase, _, counted, fill, language, page_in_language
from grpo_lab.course.checking.mistakes import by_name
from grpo_lab.course.checking.verdict import html_of
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.grading.grade import ClassGrades, GradedSubmission
from grpo_lab.course.grading.similar import as_in_key, pasted, similar
from grpo_lab.course.grading.student_page import STATES, html_page, in_words, safe
from grpo_lab.course.release.notebooks import number_of, question

TO_DISCUSS = 2  # mistakes proposed for the next lecture
RUBRIC = Path(grpo_lab.__file__).parents[1] / "notebooks" / "assignments" / "rubric.json"  # of a checkout, for teachers
Lost = tuple[Exercise, str, int, float]  # an exercise, a known mistake, how many made it, the points that it cost them


def mistakes(grading: ClassGrades) -> list[Lost]:
    """Every known mistake that somebody made, the one that cost most first.

    An answer in which several mistakes were recognised counts for each of them, and they share its points.
    """
    students: Counter[tuple[str, str]] = Counter()
    cost: Counter[tuple[str, str]] = Counter()
    for graded in grading.handed_in:
        for name, verdict in graded.verdicts.items():
            exercise = grading.exercises[name]
            recognised = [mistake for mistake in verdict.misconceptions if mistake in by_name(exercise)]
            for mistake in recognised:
                students[name, mistake] += 1
                cost[name, mistake] += (exercise.points - graded.points[name]) / len(recognised)
    lost = [(grading.exercises[e], name, n, round(cost[e, name], 1)) for (e, name), n in students.items()]
    return sorted(lost, key=lambda loss: (-loss[3], loss[0].name, loss[1]))


def to_discuss(lost: list[Lost]) -> list[Lost]:
    """The mistakes that cost most, of different exercises."""
    costliest = {loss[0].name: loss for loss in reversed(lost)}
    return [loss for loss in lost if costliest[loss[0].name] is loss][:TO_DISCUSS]


def averaged(grading: ClassGrades) -> str:
    """A sentence with the mean of the points, and how many could be graded."""
    handed_in = grading.handed_in
    mean = sum(graded.total for graded in handed_in) / max(1, len(handed_in))
    sentence = fill("{0} of {1} points on average of {2}", f"{mean:.3g}", grading.out_of, len(handed_in))
    ungraded = len(grading.students) - len(handed_in)
    return Phrase(sentence, "; ", fill("{0} could not be graded", ungraded)) if ungraded else sentence


def seeds(grading: ClassGrades) -> str:
    """A sentence on the seeds of the fresh inputs: that of most, and who was graded with another one."""
    by_seed: dict[int, list[str]] = {}
    for graded in grading.handed_in:
        by_seed.setdefault(graded.seed, []).append(graded.submission.student)
    if not by_seed:
        return fill("Seed {0}.", grading.seed)
    most, *rarer_seeds = sorted(by_seed, key=lambda seed: -len(by_seed[seed]))
    if not rarer_seeds:
        return fill("Seed {0}.", most)
    others = [fill("seed {0} for {1}", seed, ", ".join(by_seed[seed])) for seed in rarer_seeds]
    return fill("Seed {0}; {1}.", most, others)


def to_look_at(grading: ClassGrades) -> list[str]:
    """The notes on submissions that are not as expected, by student."""
    return [f"{graded.submission.student}: {'; '.join(graded.notes)}" for graded in grading.students if graded.notes]


def class_page(grading: ClassGrades, pages: list[str]) -> str:
    """The page of a class. pages: the file names of the students' pages, in their order."""
    body = [
        f"<h1>{safe(grading.assignment)}: {_(counted(len(grading.students), 'student'))}</h1>",
        f"<p>{_(averaged(grading))}{'. ' if language() == 'en' else '。'}{safe(_(seeds(grading)))} "
        f'<a href="written.html">{_("The answers in words")}</a>.</p>',
        _students(grading, pages),
        _mistakes(mistakes(grading)),
        _exercises(grading),
        _similar(similar(grading)),
        _pasted(pasted(grading)),
        _as_in_key(as_in_key(grading)),
    ]
    return html_page(_("The class"), "\n".join(part for part in body if part))


def _exercises(grading: ClassGrades) -> str:
    """The table of exercises: how many were right, partly right, not right, not begun, as a bar and in numbers."""
    rows, n = [], max(1, len(grading.handed_in))
    for exercise in grading.exercises.values():
        states = Counter(graded.state(exercise) for graded in grading.handed_in)
        mean = sum(graded.points[exercise.name] for graded in grading.handed_in) / n
        bar = "".join(f'<i class="{state}" style="width:{100 * states[state] / n:.1f}%"></i>' for state in STATES)
        cells = "".join(f'<td class="n">{states[state]}</td>' for state in STATES)
        cells += f'<td class="n">{_(fill("{0} of {1}", f"{mean:.1f}", exercise.points))}</td>'
        rows.append(f'<tr><td><code>{safe(exercise.name)}</code></td><td class="bar">{bar}</td>{cells}</tr>')
    words = "".join(f"<th class='n'>{word}</th>" for word in [*map(in_words, STATES), _("points")])
    return _table(_("Functions"), f"<th>{_('function')}</th><th></th>{words}", rows)


def _students(grading: ClassGrades, pages: list[str]) -> str:
    """The table of students, the one with the fewest points first."""
    rows = []
    for graded, page in sorted(zip(grading.students, pages, strict=True), key=lambda pair: pair[0].total):
        link = f'<a href="students/{safe(quote(page))}">{safe(graded.submission.student)}</a>'
        signs = "".join(_state(graded.state(exercise)) for exercise in grading.exercises.values())
        why = "<br>".join(html_of(text) for text in reasons(graded, grading))
        rows.append(f'<tr><td>{link}</td><td class="n">{graded.total:g}</td>{signs}<td class="why">{why}</td></tr>')
    words = "".join(f"<th class='up'><code>{safe(name)}</code></th>" for name in grading.exercises)
    head = f"<th>{_('student')}</th><th class='n'>{_('points')}</th>{words}<th>{_('why')}</th>"
    return _table(_("Students, those who are behind first"), head, rows)


def reasons(graded: GradedSubmission, grading: ClassGrades) -> list[str]:
    """The reasons for lost points, in a few words each."""
    texts = [*graded.notes, *(_(fill("cell {0}: {1}", number, why)) for number, why in graded.cells.items())]
    for name, verdict in graded.verdicts.items():
        exercise = grading.exercises[name]
        if graded.state(exercise) in ("partly", "wrong"):
            message = " ".join(_(part.text) for part in verdict.parts if part.kind == "say")
            mistakes = ", ".join(mistake_name(exercise, mistake) for mistake in verdict.misconceptions)
            texts.append(f"`{name}`: {mistakes or _first_sentence(message)}")
    untouched = {graded.state(exercise) for exercise in grading.exercises.values()} == {"none"}
    texts += [_("nothing was begun")] * (untouched and not graded.submission.problem)
    return [textwrap.shorten(text, 110, placeholder=" …") for text in texts]


def mistake_name(exercise: Exercise, name: str) -> str:
    """The name of a known mistake; in another language than English the first sentence of what is said of it."""
    mistake = by_name(exercise).get(name)
    return name if mistake is None or language() == "en" else _first_sentence(_(mistake.says))


def _first_sentence(text: str) -> str:
    return re.sub("[`*]", "", re.split(r"\. |[。！？]", text)[0])


def _state(state: str) -> str:
    return f'<td class="{state}" title="{in_words(state)[2:]}">{STATES[state][0]}</td>'


def criteria(grading: ClassGrades) -> int | None:
    """The number of things that a full answer in words has; None without the file that lists them."""
    return len(_rubric(number_of(grading.assignment))) or None


def _rubric(number: str) -> list[str]:
    return json.loads(RUBRIC.read_text(encoding="utf-8"))[number] if RUBRIC.is_file() else []


def written_page(grading: ClassGrades) -> str:
    """The page of the question in words: what a full answer has, and what each student wrote."""
    number = number_of(grading.assignment)
    title = _(fill("{0}, in words", grading.assignment))
    question_text = question(number)
    if language() != "en":
        question_text = page_in_language(question_text, f"assignment_{grading.assignment}", language(), {})
    body = [f"<h1>{safe(title)}</h1>", f"<p>{html_of(question_text)}</p>"]
    if rubric := _rubric(number):
        items = "".join(f"<li>{html_of(_(criterion))}</li>" for criterion in rubric)
        instruction = _("Write the points into written.csv.")
        body.append(f"<h2>{_('A full answer has')}</h2><ul>{items}</ul><p>{instruction}</p>")
    submissions = [graded.submission for graded in grading.students]
    for submission in submissions:
        if submission.written:
            answer = f"<pre>{safe(submission.written)}</pre>"
            body.append(f"<section><h2>{safe(submission.student)}</h2>{answer}</section>")
    without_answer = ", ".join(submission.student for submission in submissions if not submission.written)
    if without_answer:
        body.append(f"<p>{safe(_(fill('Nothing written: {0}.', without_answer)))}</p>")
    return html_page(_("In words"), "\n".join(body))


def _mistakes(lost: list[Lost]) -> str:
    """The table of known mistakes; those that are proposed for the next lecture are bold."""
    rows = []
    for exercise, name, students, points in lost:
        says, title = html_of(_(by_name(exercise)[name].says)), safe(mistake_name(exercise, name))
        proposed = (exercise, name, students, points) in to_discuss(lost)
        description = f"<b>{title}</b>: {says}" if title == name else f"<b>{says}</b>"
        description = description if proposed else title
        cells = f'<td><code>{safe(exercise.name)}</code></td><td>{description}</td><td class="n">{students}</td>'
        rows.append(f'<tr>{cells}<td class="n">{points:g}</td></tr>')
    head = f"<th>{_('function')}</th><th>{_('known mistake')}</th>"
    head += f"<th class='n'>{_('students')}</th><th class='n'>{_('points lost')}</th>"
    return _table(_("For the next lecture: mistakes that were recognised"), head, rows) if rows else ""


def _table(title: str, head: str, rows: list[str]) -> str:
    return f"<section><h2>{title}</h2><table><tr>{head}</tr>{''.join(rows)}</table></section>"


def _similar(pairs: list[tuple[str, str, list[str]]] | None) -> str:
    title = _("Answers that are alike")
    hint = _(
        "A hint, and no proof: short right answers are often alike, and people may work together where you allow it."
    )
    if pairs is None:
        install = '<code>pip install "grpo-lab[teach]"</code>'
        missing = _(fill("Answers were not compared with each other: {0}.", install))
        return f'<section><h2>{title}</h2><p class="quiet">{missing}</p></section>'
    return _hints(title, hint, [([first, second], names) for first, second, names in pairs])


def _pasted(exercises_by_student: dict[str, list[str]]) -> str:
    hint = _(
        "A hint, and no proof: the library is there to be read, and a short right answer may be its own by chance."
    )
    title = _("Answers as they stand in the library or in its public tests")
    return _hints(title, hint, _by_student(exercises_by_student))


def _as_in_key(exercises_by_student: dict[str, list[str]]) -> str:
    hint = _(
        "A hint, and no proof: the key is the lesson's function with the line of your formula, and whoever changes "
        "that one line may write the same. The file of formulas is in the public repository; one of your own is not."
    )
    return _hints(_("Answers as they stand in the key of your class"), hint, _by_student(exercises_by_student))


def _by_student(exercises_by_student: dict[str, list[str]]) -> list[tuple[list[str], list[str]]]:
    return [([student], names) for student, names in exercises_by_student.items()]


def _hints(title: str, hint: str, groups: list[tuple[list[str], list[str]]]) -> str:
    rows = [f"<li>{safe(', '.join(students))}: {safe(', '.join(names))}</li>" for students, names in groups]
    body = f'<p class="quiet">{hint}</p><ul>{"".join(rows)}</ul>'
    return f"<section><h2>{title}</h2>{body}</section>" if rows else ""
