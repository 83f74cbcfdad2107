"""Answers that are alike, as a hint and no more: most right answers to a short exercise are alike by themselves.

An answer is compared without docstring, annotations, comments, layout and the checks that lead it. Between students it
is compared by copydetect (the extra `teach`), which has the winnowing of Moss: names do not count, nor does the order
of parts. Pasted source of the library, or of the second keys in its public tests, has its names, too, so a few changes
do not matter (`difflib`). The key of a class's own formula has to be there word for word.
"""

import ast
import io
import re
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterable
from difflib import SequenceMatcher
from functools import cache
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from grpo_lab.course.exercise import Exercise
from grpo_lab.course.grading.grade import ClassGrades
from grpo_lab.course.stub import body_of, given_checks, solution_body

FEWEST_NODES = 25  # of a syntax tree; below, equality is no surprise
RARE = 0.25  # share of a class; what more have in common says nothing of two of them
GRAM, SHORTEST, ALIKE = 15, 40, 0.8  # characters of a fingerprint, and of an answer; the share that is in common
LONG = 100  # nodes after which an answer counts once more
PASTED = 0.95  # of the words in common with published source
KEYS = Path(__file__).parents[3] / "tests" / "course" / "right"  # in a checkout; an installed package has none


def similar(grading: ClassGrades) -> list[tuple[str, str, list[str]]] | None:
    """Pairs of students, and the exercises in which their answers are alike; None where copydetect is not installed.

    Left out is what the library or a published key has, and what a quarter of the class has in common.
    """
    if find_spec("copydetect") is None:
        return None
    submissions = [graded.submission for graded in grading.handed_in]
    answers = {
        submission.student: _answers_of_student(submission.cells, grading.exercises) for submission in submissions
    }
    pairs: dict[tuple[str, str], list[str]] = {}
    for name, exercise in grading.exercises.items():
        texts = {student: own[name].text for student, own in answers.items() if name in own}
        published = [answer.text for answer in (_library(exercise), *_keys(exercise))]
        for pair in _alike(texts, published, len(answers)):
            pairs.setdefault(pair, []).append(name)
    as_list = [(*pair, names) for pair, names in pairs.items()]
    return sorted(as_list, key=lambda pair: (-len(pair[2]), pair))


def _alike(texts: dict[str, str], published: list[str], class_size: int) -> list[tuple[str, str]]:
    """The pairs of students whose answers to one exercise are alike."""
    owners = Counter(mark for text in texts.values() for mark in _fingerprint(text).hashes)
    common = {mark for mark, students in owners.items() if students > max(2, RARE * class_size)}
    common |= {mark for text in published for mark in _fingerprint(text).hashes}
    own = {student: _fingerprint(text, common) for student, text in texts.items()}
    own = {student: marks for student, marks in own.items() if marks.token_coverage >= SHORTEST}
    return [pair for pair in combinations(own, 2) if _share(own[pair[0]], own[pair[1]]) >= ALIKE]


def _fingerprint(text: str, left_out: Iterable[int] = ()):
    """copydetect's fingerprints of an answer, in which names and constants do not count."""
    from copydetect import CodeFingerprint

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an answer that is shorter than a fingerprint
        return CodeFingerprint("answer.py", GRAM, 1, boilerplate=[*left_out], fp=io.StringIO(text))


def _share(first, second) -> float:
    """The share of the longer of two answers that is in the other one, too."""
    from copydetect import compare_files

    return min(compare_files(first, second)[1])


def pasted(grading: ClassGrades) -> dict[str, list[str]]:
    """The exercises, by student, whose answer is published: nearly word for word, or long and renamed.

    Published are the library's source, and the second keys in its public tests. Variants: see `as_in_key`.
    """

    def is_published(exercise: Exercise, answer: Answer) -> bool:
        return any(_is_pasted(answer, source) for source in (_library(exercise), *_keys(exercise)))

    return _matching_exercises(grading, is_published, variants=False)


def as_in_key(grading: ClassGrades) -> dict[str, list[str]]:
    """The exercises with a formula of the class, by student, whose answer is the key's, word for word.

    The key is the library's function with another line, so an answer that is nearly the key may be the student's own
    change to the lesson's function.
    """
    return _matching_exercises(
        grading, lambda exercise, answer: answer.words == _library(exercise).words, variants=True
    )


def _matching_exercises(
    grading: ClassGrades, fits: Callable[[Exercise, "Answer"], bool], variants: bool
) -> dict[str, list[str]]:
    """The exercises, by student, to which the answer fits; of the class's formulas, or of the lessons'."""
    exercises = {name: exercise for name, exercise in grading.exercises.items() if exercise.is_variant == variants}
    exercises_of_student = {}
    for graded in grading.handed_in:
        answers = _answers_of_student(graded.submission.cells, exercises)
        if names := [name for name in exercises if name in answers and fits(exercises[name], answers[name])]:
            exercises_of_student[graded.submission.student] = names
    return exercises_of_student


def _is_pasted(answer: "Answer", source: "Answer") -> bool:
    if answer.nodes > LONG and answer.shape == source.shape:
        return True
    matcher = SequenceMatcher(None, answer.words, source.words, autojunk=False)
    return matcher.real_quick_ratio() >= PASTED and matcher.ratio() >= PASTED


def _answers_of_student(cells, exercises: dict[str, Exercise]) -> dict[str, "Answer"]:
    """Exercise -> its answer; of what was repaired there is none, since nearly all of it was in the stub."""
    written = {name: exercise for name, exercise in exercises.items() if not exercise.planted}
    answers: dict[str, Answer] = {}
    for cell in cells:
        answers |= answers_in(cell.source, written)
    return {name: answer for name, answer in answers.items() if answer.nodes > FEWEST_NODES}


class Answer(NamedTuple):
    """The statements of a function behind its docstring and the given checks.

    shape: the syntax, with variables numbered. words: names, keywords and constants, in order. In both there is only
    the hash of a constant, which may be long, and nothing of a text. nodes: of the syntax tree. text: its code.
    """

    shape: str
    words: list[str]
    nodes: int
    text: str


def answers_in(source: str, exercises: Container[str]) -> dict[str, Answer]:
    """The answers in a cell, by exercise; none where it cannot be read."""
    try:
        functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
        return {function.name: _answer(function) for function in functions if function.name in exercises}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}


@cache
def _library(exercise: Exercise) -> Answer:
    return answers_in(f"def {exercise.name}():\n{solution_body(exercise)}", {exercise.name})[exercise.name]


@cache
def _keys(exercise: Exercise) -> list[Answer]:
    """The published keys of an exercise: of the functions that a file of `KEYS` lists under its name."""
    path = KEYS / f"nb{exercise.notebook}.py"
    tree = ast.parse(path.read_text(encoding="utf-8") if path.is_file() else "")
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    listed = [node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)]
    named = {key.value: value for table in listed for key, value in zip(table.keys, table.values, strict=True)}
    own = named.get(exercise.name, ast.Tuple([], ast.Load()))
    return [_answer(functions[node.id]) for node in ast.walk(own) if getattr(node, "id", "") in functions]


def _answer(function: ast.FunctionDef) -> Answer:
    body = ast.Module(body_of(function)[len(given_checks(function)) :], [])
    nodes = [node for node in ast.walk(body) if not isinstance(node, ast.expr_context)]
    for node in nodes:
        if isinstance(node, ast.Constant):
            node.value = "" if isinstance(node.value, str | bytes) else hash(node.value)
    text = ast.unparse(body)
    words = re.findall(r"\w+", text)
    numbers: dict[str, int] = {}
    for node in nodes:
        if isinstance(node, ast.Name):
            node.id = str(numbers.setdefault(node.id, len(numbers)))
    return Answer(ast.dump(body), words, len(nodes), text)
