"""Answers that are alike, as a hint and no more: most right answers to a short exercise are alike by themselves.

An answer is compared without docstring, annotations, comments, layout and the checks that lead it. Between students the
names of variables do not count either, but the answer has to be equal, and rare in the class. Pasted source of the
library, or of the second keys in its public tests, has its names, too, so a few changes do not matter (`difflib`).
"""

import ast
import re
from collections import Counter
from collections.abc import Container
from difflib import SequenceMatcher
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from grpo_lab.course.exercise import Exercise
from grpo_lab.course.grading.grade import Grading
from grpo_lab.course.stub import body_of, given_checks, solution_body

FEWEST_NODES = 25  # of a syntax tree; below, equality is no surprise
RARE, SMALLEST_CLASS = 0.25, 10  # share of a class that has an answer; with three students, nothing would be rare
ENOUGH = 3  # rare answers that two students have in common, or one if they agree in nearly all that both have written
NEARLY_ALL = 0.8
LONG = 100  # nodes after which an answer counts once more
PASTED = 0.95  # of the words in common with published source
KEYS = Path(__file__).parents[3] / "tests" / "course" / "right"  # in a checkout; an installed package has none


def similar(grading: Grading) -> list[tuple[list[str], list[str]]]:
    """Groups of students, and the exercises in which each of the group has the same rare answer.

    Groups that share a student stay apart: who agrees with one student in one exercise, and with another in a second
    one, brings these two into no connection.
    """
    shapes = {s.submission.student: _student_shapes(s.submission.cells, grading.exercises) for s in grading.handed_in}
    owners = Counter((name, shape) for own in shapes.values() for name, shape in own.items())
    limit = RARE * max(len(shapes), SMALLEST_CLASS)
    groups: set[tuple[frozenset[str], frozenset[str]]] = set()  # students, and exercises
    for first, second in combinations(shapes, 2):
        attempted = shapes[first].keys() & shapes[second].keys()
        equal = {name: shapes[first][name] for name in attempted if shapes[first][name] == shapes[second][name]}
        rare = {name: shape for name, shape in equal.items() if owners[name, shape] <= limit}
        evidence = sum(1 + shape.count("(") // LONG for shape in rare.values())
        if evidence >= ENOUGH or (rare and len(equal) >= NEARLY_ALL * len(attempted)):
            students = frozenset(student for student, own in shapes.items() if rare.items() <= own.items())
            groups.add((students, frozenset(rare)))
    largest = [g for g in groups if not any(g != h and g[0] <= h[0] and g[1] <= h[1] for h in groups)]
    as_lists = [(sorted(students), sorted(names)) for students, names in largest]
    return sorted(as_lists, key=lambda group: (-len(group[1]), group[0]))


def pasted(grading: Grading) -> dict[str, list[str]]:
    """The exercises, by student, whose answer is published: nearly word for word, or long and renamed.

    Of a variant nothing is published, and what is right differs from the library's by a line.

    Published are the library's source, and the second keys in its public tests.
    """
    exercises_of_student = {}
    for graded in grading.handed_in:
        lessons = {name: exercise for name, exercise in grading.exercises.items() if not exercise.variant}
        answers = _answers_of_student(graded.submission.cells, lessons)
        published = {name: [_library(grading.exercises[name]), *_keys(grading.exercises[name])] for name in answers}
        names = [n for n, answer in answers.items() if any(_is_pasted(answer, source) for source in published[n])]
        if names:
            exercises_of_student[graded.submission.student] = sorted(names, key=list(grading.exercises).index)
    return exercises_of_student


def _is_pasted(answer: "Answer", source: "Answer") -> bool:
    if answer.nodes > LONG and answer.shape == source.shape:
        return True
    matcher = SequenceMatcher(None, answer.words, source.words, autojunk=False)
    return matcher.real_quick_ratio() >= PASTED and matcher.ratio() >= PASTED


def _student_shapes(cells, exercises: dict[str, Exercise]) -> dict[str, str]:
    """Exercise -> the shape of the answer, unless it is the library's own."""
    answers = _answers_of_student(cells, exercises)
    return {n: answer.shape for n, answer in answers.items() if answer.shape != _library(exercises[n]).shape}


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
    the hash of a constant, which may be long, and nothing of a text. nodes: of the syntax tree.
    """

    shape: str
    words: list[str]
    nodes: int


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
    words = re.findall(r"\w+", ast.unparse(body))
    numbers: dict[str, int] = {}
    for node in nodes:
        if isinstance(node, ast.Name):
            node.id = str(numbers.setdefault(node.id, len(numbers)))
    return Answer(ast.dump(body), words, len(nodes))
