"""The pages of a graded class as HTML: one for each student, and two for the teacher.

The teacher's pages show the students with few points and why, the mistakes that they made, and the answers in words.
All pages quote what students wrote, so their texts are escaped.
"""

import html
import json
import re
import textwrap
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import grpo_lab
from grpo_lab.base.language import Phrase, _, counted, fill, language, translate_page
from grpo_lab.course.checking.mistakes import mistakes_by_name
from grpo_lab.course.checking.verdict import PartKind, html_of, part_html
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.exercises import Assignment
from grpo_lab.course.grading.class_grades import AnswerState, ClassGrades, GradedSubmission
from grpo_lab.course.grading.similar_answers import SimilarPair, answers_as_in_key, pasted_answers, similar_answers
from grpo_lab.course.release.notebooks import written_question

NUM_TO_DISCUSS = 2  # mistakes that are proposed for the next lecture
# The criteria of a full answer in words, for teachers; only a checkout of the repository has the file.
RUBRIC = Path(grpo_lab.__file__).parents[1] / "notebooks" / "assignments" / "rubric.json"
STATES = {
    AnswerState.RIGHT: "✓ right",
    AnswerState.PARTLY: "◐ partly right",
    AnswerState.WRONG: "✗ not right",
    AnswerState.NOT_BEGUN: "· not begun",
}
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


def student_page(graded: GradedSubmission, grades: ClassGrades) -> str:
    """Return the page of a student: the state of each function, on which input it is wrong, and by which mistake."""
    exercises = grades.exercises
    body = [f"<h1>{escaped(graded.submission.student)}</h1>"]
    body.append(
        f"<p><strong>{_(fill('{0} of {1} points.', format(graded.total, 'g'), grades.max_points))}</strong></p>"
    )
    body += [f"<p>{escaped(remark)}.</p>" for remark in graded.notes]
    if not graded.submission.problem:
        rows = [_answer_row(graded, exercise) for exercise in exercises.values()]
        head = f'<tr><th>{_("function")}</th><th>{_("result")}</th><th class="n">{_("points")}</th></tr>'
        body.append("\n".join(["<table>", head, *rows, "</table>"]))
        body += [
            _answer_section(graded, name)
            for name in exercises
            if graded.state(exercises[name]) != AnswerState.NOT_BEGUN
        ]
    if graded.failed_cells:
        failed = "".join(f"<li>{escaped(_(fill('cell {0}: {1}', *cell)))}</li>" for cell in graded.failed_cells.items())
        body.append(f"<section><h2>{_('Cells that failed')}</h2><ul>{failed}</ul></section>")
    note = fill(
        "Each function ran on the inputs that you see in your notebook, and on fresh ones (seed {0}, grpo_lab {1}). "
        "The points are for functions; your teacher reads the rest.",
        graded.seed,
        grpo_lab.__version__,
    )
    body.append(f'<p class="quiet">{escaped(_(note))}</p>')
    return html_page(graded.submission.student, "\n".join(body))


def _answer_row(graded: GradedSubmission, exercise: Exercise) -> str:
    state, name = graded.state(exercise), f"<code>{escaped(exercise.name)}</code>"
    link = name if state == AnswerState.NOT_BEGUN else f'<a href="#{escaped(exercise.name)}">{name}</a>'
    points = f'<td class="n">{_(fill("{0} of {1}", format(graded.points[exercise.name], "g"), exercise.points))}</td>'
    return f'<tr><td>{link}</td><td><span class="{state}">{state_in_words(state)}</span></td>{points}</tr>'


def _answer_section(graded: GradedSubmission, name: str) -> str:
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


def class_page(grades: ClassGrades, pages: list[str]) -> str:
    """Return the page of a class as HTML.

    pages: The file names of the students' pages, in the order of the students.
    """
    body = [
        f"<h1>{escaped(grades.assignment_stem)}: {_(counted(len(grades.submissions), 'student'))}</h1>",
        f"<p>{_(average_sentence(grades))}{'. ' if language() == 'en' else '。'}{escaped(_(seed_sentence(grades)))} "
        f'<a href="written.html">{_("The answers in words")}</a>.</p>',
        _students_table(grades, pages),
        _mistakes_table(recognised_mistakes(grades)),
        _exercises_table(grades),
        _similar_section(similar_answers(grades)),
        _pasted_section(pasted_answers(grades)),
        _key_section(answers_as_in_key(grades)),
    ]
    return html_page(_("The class"), "\n".join(part for part in body if part))


def average_sentence(grades: ClassGrades) -> str:
    """Return a sentence with the mean of the points and the number of submissions that could be graded."""
    handed_in = grades.handed_in
    mean = sum(graded.total for graded in handed_in) / max(1, len(handed_in))
    sentence = fill("{0} of {1} points on average of {2}", f"{mean:.3g}", grades.max_points, len(handed_in))
    ungraded = len(grades.submissions) - len(handed_in)
    return Phrase(sentence, "; ", fill("{0} could not be graded", ungraded)) if ungraded else sentence


def seed_sentence(grades: ClassGrades) -> str:
    """Return a sentence on the seeds of the fresh inputs: the most frequent one, and the students with another one."""
    by_seed: dict[int, list[str]] = {}
    for graded in grades.handed_in:
        by_seed.setdefault(graded.seed, []).append(graded.submission.student)
    if not by_seed:
        return fill("Seed {0}.", grades.seed)
    most_frequent, *other_seeds = sorted(by_seed, key=lambda seed: -len(by_seed[seed]))
    if not other_seeds:
        return fill("Seed {0}.", most_frequent)
    students = [fill("seed {0} for {1}", seed, ", ".join(by_seed[seed])) for seed in other_seeds]
    return fill("Seed {0}; {1}.", most_frequent, students)


def notes_on_submissions(grades: ClassGrades) -> list[str]:
    """Return a line for each submission that has notes, with the student and the notes."""
    return [f"{graded.submission.student}: {'; '.join(graded.notes)}" for graded in grades.submissions if graded.notes]


def _students_table(grades: ClassGrades, pages: list[str]) -> str:
    """Return the table of students, beginning with the fewest points."""
    rows = []
    for graded, page in sorted(zip(grades.submissions, pages, strict=True), key=lambda pair: pair[0].total):
        link = f'<a href="students/{escaped(quote(page))}">{escaped(graded.submission.student)}</a>'
        signs = "".join(_state_cell(graded.state(exercise)) for exercise in grades.exercises.values())
        why = "<br>".join(html_of(text) for text in reasons_for_lost_points(graded, grades))
        rows.append(f'<tr><td>{link}</td><td class="n">{graded.total:g}</td>{signs}<td class="why">{why}</td></tr>')
    headings = "".join(f"<th class='up'><code>{escaped(name)}</code></th>" for name in grades.exercises)
    head = f"<th>{_('student')}</th><th class='n'>{_('points')}</th>{headings}<th>{_('why')}</th>"
    return _table(_("Students, from the fewest points to the most"), head, rows)


def reasons_for_lost_points(graded: GradedSubmission, grades: ClassGrades) -> list[str]:
    """Return the reasons why a student lost points, in a few words each."""
    failed_cells = (_(fill("cell {0}: {1}", number, reason)) for number, reason in graded.failed_cells.items())
    texts = [*graded.notes, *failed_cells]
    for name, verdict in graded.verdicts.items():
        exercise = grades.exercises[name]
        if graded.state(exercise) in (AnswerState.PARTLY, AnswerState.WRONG):
            message = " ".join(_(part.text) for part in verdict.parts if part.kind == PartKind.SENTENCES)
            mistakes = ", ".join(mistake_name(exercise, mistake) for mistake in verdict.misconceptions)
            texts.append(f"`{name}`: {mistakes or _first_sentence(message)}")
    is_untouched = all(graded.state(exercise) == AnswerState.NOT_BEGUN for exercise in grades.exercises.values())
    if is_untouched and not graded.submission.problem:
        texts.append(_("nothing was begun"))
    return [textwrap.shorten(text, 110, placeholder=" …") for text in texts]


class RecognisedMistake(NamedTuple):
    """A known mistake that students of a class made.

    Attributes:
        exercise: The exercise in which it was made.
        name: The name of the mistake.
        num_students: The number of students who made it.
        lost_points: The points that they lost by it, all together.
    """

    exercise: Exercise
    name: str
    num_students: int
    lost_points: float


def recognised_mistakes(grades: ClassGrades) -> list[RecognisedMistake]:
    """Return the known mistakes that were made, beginning with the one that cost the most points.

    An answer with several mistakes counts for each of them, and its lost points are shared among them.
    """
    num_students: Counter[tuple[str, str]] = Counter()
    lost_points: dict[tuple[str, str], float] = defaultdict(float)
    for graded in grades.handed_in:
        for name, verdict in graded.verdicts.items():
            exercise = grades.exercises[name]
            recognised = [mistake for mistake in verdict.misconceptions if mistake in mistakes_by_name(exercise)]
            for mistake in recognised:
                num_students[name, mistake] += 1
                lost_points[name, mistake] += (exercise.points - graded.points[name]) / len(recognised)
    mistakes = [
        RecognisedMistake(grades.exercises[name], mistake, number, round(lost_points[name, mistake], 1))
        for (name, mistake), number in num_students.items()
    ]
    return sorted(mistakes, key=lambda mistake: (-mistake.lost_points, mistake.exercise.name, mistake.name))


def mistakes_to_discuss(mistakes: list[RecognisedMistake]) -> list[RecognisedMistake]:
    """Return the mistakes that cost the most points, at most one for each exercise, from a list in that order."""
    costliest: dict[str, RecognisedMistake] = {}
    for mistake in mistakes:
        costliest.setdefault(mistake.exercise.name, mistake)
    return list(costliest.values())[:NUM_TO_DISCUSS]


def mistake_name(exercise: Exercise, name: str) -> str:
    """Return the name of a mistake in the reader's language.

    In English this is the name itself, in another language the first sentence of its text. An unknown mistake keeps
    its name.
    """
    mistake = mistakes_by_name(exercise).get(name)
    return name if mistake is None or language() == "en" else _first_sentence(_(mistake.explanation))


def _first_sentence(text: str) -> str:
    return re.sub("[`*]", "", re.split(r"\. |[。！？]", text)[0])


def _mistakes_table(mistakes: list[RecognisedMistake]) -> str:
    """Return the table of known mistakes. Mistakes that are proposed for the next lecture are bold, with their text."""
    rows = []
    for mistake in mistakes:
        text = html_of(_(mistakes_by_name(mistake.exercise)[mistake.name].explanation))
        title = escaped(mistake_name(mistake.exercise, mistake.name))
        if mistake not in mistakes_to_discuss(mistakes):
            description = title
        elif title == mistake.name:
            description = f"<b>{title}</b>: {text}"
        else:
            description = f"<b>{text}</b>"  # the title is the first sentence of the text
        cells = f"<td><code>{escaped(mistake.exercise.name)}</code></td><td>{description}</td>"
        cells += f'<td class="n">{mistake.num_students}</td><td class="n">{mistake.lost_points:g}</td>'
        rows.append(f"<tr>{cells}</tr>")
    head = f"<th>{_('function')}</th><th>{_('known mistake')}</th>"
    head += f"<th class='n'>{_('students')}</th><th class='n'>{_('points lost')}</th>"
    return _table(_("For the next lecture: mistakes that were recognised"), head, rows) if rows else ""


def _exercises_table(grades: ClassGrades) -> str:
    """Return the table of exercises: the number of answers in each state, as a bar and in digits, and mean points."""
    rows, n = [], max(1, len(grades.handed_in))
    for exercise in grades.exercises.values():
        states = Counter(graded.state(exercise) for graded in grades.handed_in)
        mean = sum(graded.points[exercise.name] for graded in grades.handed_in) / n
        bar = "".join(f'<i class="{state}" style="width:{100 * states[state] / n:.1f}%"></i>' for state in STATES)
        cells = "".join(f'<td class="n">{states[state]}</td>' for state in STATES)
        cells += f'<td class="n">{_(fill("{0} of {1}", f"{mean:.1f}", exercise.points))}</td>'
        rows.append(f'<tr><td><code>{escaped(exercise.name)}</code></td><td class="bar">{bar}</td>{cells}</tr>')
    headings = "".join(f"<th class='n'>{word}</th>" for word in [*map(state_in_words, STATES), _("points")])
    return _table(_("Functions"), f"<th>{_('function')}</th><th></th>{headings}", rows)


def _state_cell(state: AnswerState) -> str:
    return f'<td class="{state}" title="{state_in_words(state)[2:]}">{STATES[state][0]}</td>'


def _table(title: str, head: str, rows: list[str]) -> str:
    return f"<section><h2>{title}</h2><table><tr>{head}</tr>{''.join(rows)}</table></section>"


def num_criteria(grades: ClassGrades) -> int | None:
    """Return the number of criteria of a full answer in words; None without the file that lists them."""
    return len(_rubric(grades.assignment)) or None


def _rubric(assignment: Assignment) -> list[str]:
    return json.loads(RUBRIC.read_text(encoding="utf-8"))[assignment.number] if RUBRIC.is_file() else []


def written_page(grades: ClassGrades) -> str:
    """Return the page of the question in words as HTML: the criteria of a full answer, and all students' answers."""
    title = _(fill("{0}, in words", grades.assignment_stem))
    question_text = written_question(grades.assignment)
    if language() != "en":
        question_text = translate_page(question_text, f"assignment_{grades.assignment_stem}", language(), {})
    body = [f"<h1>{escaped(title)}</h1>", f"<p>{html_of(question_text)}</p>"]
    if rubric := _rubric(grades.assignment):
        items = "".join(f"<li>{html_of(_(criterion))}</li>" for criterion in rubric)
        instruction = _("Write the points into written.csv.")
        body.append(f"<h2>{_('A full answer has')}</h2><ul>{items}</ul><p>{instruction}</p>")
    submissions = [graded.submission for graded in grades.submissions]
    for submission in submissions:
        if submission.written_answer:
            answer = f"<pre>{escaped(submission.written_answer)}</pre>"
            body.append(f"<section><h2>{escaped(submission.student)}</h2>{answer}</section>")
    without_answer = ", ".join(submission.student for submission in submissions if not submission.written_answer)
    if without_answer:
        body.append(f"<p>{escaped(_(fill('Nothing written: {0}.', without_answer)))}</p>")
    return html_page(_("In words"), "\n".join(body))


def _similar_section(pairs: list[SimilarPair] | None) -> str:
    title = _("Answers that are alike")
    hint = _(
        "A hint, not a proof: short right answers are often alike, and people may work together where you allow it."
    )
    if pairs is None:
        install = '<code>pip install "grpo-lab[teach]"</code>'
        missing = _(fill("Answers were not compared with each other: {0}.", install))
        return f'<section><h2>{title}</h2><p class="quiet">{missing}</p></section>'
    return _hint_section(title, hint, [([pair.first, pair.second], pair.exercises) for pair in pairs])


def _pasted_section(exercises_by_student: dict[str, list[str]]) -> str:
    hint = _("A hint, not a proof: the library is there to be read, and a short right answer may be its own by chance.")
    title = _("Answers as they stand in the library or in its public tests")
    return _hint_section(title, hint, _by_student(exercises_by_student))


def _key_section(exercises_by_student: dict[str, list[str]]) -> str:
    hint = _(
        "A hint, not a proof: the key is the lesson's function with the line of your formula, and whoever changes "
        "that one line may write the same. The file of formulas is in the public repository; one of your own is not."
    )
    return _hint_section(_("Answers as they stand in the key of your class"), hint, _by_student(exercises_by_student))


def _by_student(exercises_by_student: dict[str, list[str]]) -> list[tuple[list[str], list[str]]]:
    return [([student], names) for student, names in exercises_by_student.items()]


def _hint_section(title: str, hint: str, groups: list[tuple[list[str], list[str]]]) -> str:
    """Return a section with a line for each group of students and exercises; "" without groups."""
    rows = [f"<li>{escaped(', '.join(students))}: {escaped(', '.join(names))}</li>" for students, names in groups]
    body = f'<p class="quiet">{hint}</p><ul>{"".join(rows)}</ul>'
    return f"<section><h2>{title}</h2>{body}</section>" if rows else ""


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
