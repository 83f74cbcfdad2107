"""Answers that are alike, as a hint and no more: most right answers to a short exercise are alike by themselves.

Two functions are compared by their syntax trees, with names of variables, docstrings, annotations, comments and layout
taken out, and without the checks that lead it. Each pair of students is compared; who is alike by pairs is a group.
"""

import ast
from collections import Counter
from functools import cache
from itertools import combinations
from math import log2

from grpo_lab.course.exercise import Exercise
from grpo_lab.course.grading.grade import Grading
from grpo_lab.course.stub import body_of, given_checks, solution_body

FEWEST_NODES = 25  # below, equality is no surprise
SMALLEST_CLASS = 10  # as if there were so many: with three students, nothing is rare
LONG = 60  # nodes and contexts after which a common answer says twice as much
ENOUGH, AT_LEAST = 10.0, 2.0  # bits for any pair; and for one that agrees in nearly all that both have written
NEARLY_ALL = 0.8


def similar(grading: Grading) -> list[tuple[list[str], list[str]]]:
    """Groups of students with rare answers in common, and the exercises in which any two of them agree."""
    shapes = {one.submission.student: _of_student(one.submission.cells, grading.exercises) for one in grading.handed_in}
    often = Counter((name, shape) for own in shapes.values() for name, shape in own.items())
    groups: list[tuple[set[str], set[str]]] = []  # students, and exercises
    for one, other in combinations(shapes, 2):
        both = shapes[one].keys() & shapes[other].keys()
        equal = {name for name in both if shapes[one][name] == shapes[other][name]}
        bits = sum(_surprise(shapes[one][name], often[name, shapes[one][name]], len(shapes)) for name in equal)
        if bits >= ENOUGH or (bits >= AT_LEAST and len(equal) >= NEARLY_ALL * len(both)):
            joined = [({one, other}, equal), *(group for group in groups if group[0] & {one, other})]
            groups = [group for group in groups if not group[0] & {one, other}]
            groups.append((set().union(*(group[0] for group in joined)), set().union(*(group[1] for group in joined))))
    found = [(sorted(students), sorted(names)) for students, names in groups]
    return sorted(found, key=lambda one: (-len(one[1]), one[0]))


def _surprise(shape: str, often: int, students: int) -> float:
    """How much a common answer says, in bits: more the rarer it is, and the longer."""
    return log2(max(students, SMALLEST_CLASS) / often) * max(1.0, shape.count("(") / LONG)


def _of_student(cells, exercises: dict[str, Exercise]) -> dict[str, str]:
    """Exercise -> the shape of the answer, where it is long enough to say something, and not the library's own.

    Not of what was repaired: nearly all of that was given.
    """
    found: dict[str, str] = {}
    written = {name: exercise for name, exercise in exercises.items() if not exercise.planted}
    for cell in cells:
        found |= shapes_of(cell.source, written)
    return {name: shape for name, shape in found.items() if shape and shape != _of_library(exercises[name])}


def shapes_of(source: str, exercises: dict[str, Exercise]) -> dict[str, str]:
    """Exercise -> what is left of its function when names, words and given lines are gone; "" for small ones."""
    try:
        functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
        own = [node for node in functions if node.name in exercises]
        return {node.name: _shape(node) for node in own}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}


@cache
def _of_library(exercise: Exercise) -> str:
    return shapes_of(f"def {exercise.name}():\n{solution_body(exercise)}", {exercise.name: exercise})[exercise.name]


def _shape(function: ast.FunctionDef) -> str:
    """Its syntax: variables are numbered, words are gone, and of a constant, which may be long, the hash is left."""
    numbers: dict[str, int] = {}
    body = ast.Module(body_of(function)[len(given_checks(function)) :], [])
    nodes = [node for node in ast.walk(body) if not isinstance(node, ast.expr_context)]
    for node in nodes:
        if isinstance(node, ast.Name):
            node.id = str(numbers.setdefault(node.id, len(numbers)))
        elif isinstance(node, ast.Constant):
            node.value = "" if isinstance(node.value, str | bytes) else hash(node.value)
    return ast.dump(body) if len(nodes) > FEWEST_NODES else ""
