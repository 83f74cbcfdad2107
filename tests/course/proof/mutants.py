"""Mutants of a reference, made by machine: each differs from it in one place, and a case should tell.

The function itself is changed, and the private functions of its module that it calls. What no case tells from the
reference is a gap in the exercise: it would be accepted if a student wrote it.
"""

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType

from grpo_lab.course.checking.compare import equal
from grpo_lab.course.checking.outcome import Outcome, outcome_of
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.guard import guarded
from grpo_lab.course.wrong_answers import function_from_source, source_of
from tests.mutants.operators import variants

SECONDS = 2.0  # for one case; a mutant may be without end


@dataclass(frozen=True)
class AnswerMutant:
    """A function in which one statement, as Python writes it, has a replacement: "" where it is left out."""

    function: str
    original: str
    replacement: str
    answer: Callable

    @property
    def name(self) -> str:
        return f"{self.function}: {self.original} -> {self.change}"

    @property
    def change(self) -> str:
        return self.replacement or "nothing"


def mutants(exercise: Exercise) -> Iterator[AnswerMutant]:
    """Every mutant of the reference of an exercise, no two with the same code."""
    reference = inspect.unwrap(exercise.function)
    trees = _trees(reference)
    for name, tree in trees.items():
        source = ast.unparse(tree)
        for code in dict.fromkeys(map(ast.unparse, variants(tree))):
            if code != source:
                codes = {function: ast.unparse(tree_of_it) for function, tree_of_it in trees.items()} | {name: code}
                whole = "\n".join(codes.values())
                yield AnswerMutant(name, *_difference(source, code), function_from_source(reference, whole))


def survives(exercise: Exercise, mutant: AnswerMutant, expected: Sequence[Outcome], seed: int = 0) -> bool:
    """Whether no case tells the mutant from the reference, whose outcomes are `expected`."""
    for index, right in enumerate(expected):
        ran = guarded(lambda index=index: outcome_of(mutant.answer, exercise, index, seed), SECONDS)
        if ran.fault or ran.result is None or not equal(ran.result, right, exercise):
            return False
    return True


def _trees(reference: FunctionType) -> dict[str, ast.FunctionDef]:
    """The function and the private ones of its module that it leads to, by name, without docstrings."""
    module, trees, waiting = inspect.getmodule(reference), {}, [reference]
    while waiting:
        function = waiting.pop()
        tree = tree_of(function)
        if function.__name__ in trees or not isinstance(tree, ast.FunctionDef):
            continue
        trees[function.__name__] = tree
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        names = {name for name in names if name.startswith("_") and not name.startswith("_check_")}
        values = (inspect.unwrap(vars(module)[name]) for name in names if callable(vars(module).get(name)))
        waiting += [v for v in values if isinstance(v, FunctionType) and v.__module__ == module.__name__]
    return trees


def tree_of(function: FunctionType) -> ast.stmt:
    """The source of a function as a tree, without its docstring."""
    tree = ast.parse(source_of(function)).body[0]
    if isinstance(tree, ast.FunctionDef) and ast.get_docstring(tree):
        tree.body = tree.body[1:]
    return tree


def _difference(source: str, code: str) -> tuple[str, str]:
    """The first line that differs, of a statement what is asked; "" where it is left out."""
    original, replacement = source.splitlines(), code.splitlines()
    line = next(i for i, (old, new) in enumerate(zip(original, [*replacement, ""], strict=False)) if old != new)
    left_out = len(replacement) < len(original) or replacement[line].strip() == "pass"
    return original[line].strip(), "" if left_out else replacement[line].strip()
