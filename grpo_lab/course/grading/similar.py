"""Answers that are alike, as a hint and no more: most right answers to a short exercise are alike by themselves.

Two functions are compared by their syntax trees, with names of variables, docstrings, annotations, comments and layout
taken out. What is rare counts: an answer that many students share, or that equals the reference, says nothing.
"""

import ast
from dataclasses import dataclass

from grpo_lab.course.grading.grade import Grading
from grpo_lab.course.stub import solution_body

FEWEST_NODES = 25  # below, equality is no surprise
COMMON = 0.1  # of the class: an answer that more than this share has is the usual one (and more than two students)


@dataclass(frozen=True)
class Alike:
    """Students whose answers to these exercises have the same shape."""

    students: tuple[str, ...]
    exercises: tuple[str, ...]


def similar(grading: Grading) -> list[Alike]:
    """Groups of students with the same rare shape of answer in at least one exercise, most exercises first."""
    shapes: dict[tuple[str, str], set[str]] = {}
    for student, graded in grading.students.items():
        for one in graded:
            wanted = {mark.exercise.name for mark in one.marks if mark.status != "not started"}
            for cell in one.submission.cells:
                for name, shape in shapes_of(cell.source, wanted).items():
                    shapes.setdefault((name, shape), set()).add(student)
    own = {(e.name, shape) for e in grading.exercises for shape in [_reference(e)] if shape}
    most = max(2, COMMON * len(grading.students))
    found: dict[tuple[str, ...], set[str]] = {}
    for (name, shape), students in shapes.items():
        if 2 <= len(students) <= most and (name, shape) not in own:
            found.setdefault(tuple(sorted(students)), set()).add(name)
    alike = [Alike(students, tuple(sorted(names))) for students, names in found.items()]
    return sorted(alike, key=lambda one: (-len(one.exercises), one.students))


def shapes_of(source: str, names: set[str]) -> dict[str, str]:
    """Exercise -> what is left of its function when names and words are gone; small functions are left out."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    functions = [node for node in body if isinstance(node, ast.FunctionDef) and node.name in names]
    found = {node.name: _shape(node) for node in functions}
    return {name: shape for name, shape in found.items() if shape}


def _reference(exercise) -> str:
    return shapes_of(f"def {exercise.name}():\n{solution_body(exercise)}", {exercise.name}).get(exercise.name, "")


def _shape(function: ast.FunctionDef) -> str:
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    kinds: dict[str, int] = {}
    parts = []
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name):
                parts.append(f"name{kinds.setdefault(node.id, len(kinds))}")
            elif isinstance(node, ast.Attribute):
                parts.append(f".{node.attr}")
            elif isinstance(node, ast.Constant):
                parts.append(_constant(node.value))
            elif not isinstance(node, ast.expr_context):
                parts.append(type(node).__name__)
    return " ".join(parts) if len(parts) >= FEWEST_NODES else ""


def _constant(value: object) -> str:
    """Words do not matter, and a whole number may be too long to be written in decimals."""
    if isinstance(value, str | bytes):
        return f"={type(value).__name__}"
    return f"={hash(value)}" if type(value) is int else f"={value!r}"
