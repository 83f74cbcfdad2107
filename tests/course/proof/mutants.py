"""Mutants of a reference, made by machine: each differs from it in one place, and a case should show the difference.

The function itself is mutated, and so are the private functions of its module that it calls. A mutant that agrees with
the reference on all cases is a gap in the exercise: the check would accept it from a student.
"""

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType

from grpo_lab.course.checking.outcome import Outcome, equal_outcomes
from grpo_lab.course.checking.run_cases import guarded, outcome_of
from grpo_lab.course.exercise import Exercise, function_from_source, source_of
from tests.mutants.operators import variants

MAX_CASE_SECONDS = 2.0  # the time limit for one case, since a mutant may run forever


@dataclass(frozen=True)
class AnswerMutant:
    """A function with one replaced statement.

    Attributes:
        function: The name of the function in which the statement is.
        original: The statement, as `ast.unparse` writes it.
        replacement: The statement in its place; "" if it is left out.
        answer: The mutated reference.
    """

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
    """Yield every mutant of the reference of an exercise; no two have the same code."""
    reference = inspect.unwrap(exercise.function)
    trees = _trees(reference)
    for name, tree in trees.items():
        source = ast.unparse(tree)
        for code in dict.fromkeys(map(ast.unparse, variants(tree))):
            if code != source:
                codes = {function: ast.unparse(other_tree) for function, other_tree in trees.items()} | {name: code}
                answer = function_from_source(reference, "\n".join(codes.values()))
                yield AnswerMutant(name, *_difference(source, code), answer)


def survives(exercise: Exercise, mutant: AnswerMutant, expected: Sequence[Outcome], seed: int = 0) -> bool:
    """Return True if a mutant agrees with the reference, whose outcomes are `expected`, on all cases."""
    for index, right in enumerate(expected):
        call = guarded(lambda index=index: outcome_of(mutant.answer, exercise, index, seed), MAX_CASE_SECONDS)
        if call.fault or call.result is None or not equal_outcomes(call.result, right, exercise):
            return False
    return True


def _trees(reference: FunctionType) -> dict[str, ast.FunctionDef]:
    """Return the trees of a function and of the private functions of its module that it calls, by name."""
    module, trees, pending = inspect.getmodule(reference), {}, [reference]
    while pending:
        function = pending.pop()
        tree = tree_of(function)
        if function.__name__ in trees or not isinstance(tree, ast.FunctionDef):
            continue
        trees[function.__name__] = tree
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        names = {name for name in names if name.startswith("_") and not name.startswith("_check_")}
        values = (inspect.unwrap(vars(module)[name]) for name in names if callable(vars(module).get(name)))
        pending += [v for v in values if isinstance(v, FunctionType) and v.__module__ == module.__name__]
    return trees


def tree_of(function: FunctionType) -> ast.stmt:
    """Return the syntax tree of a function, without its docstring."""
    tree = ast.parse(source_of(function)).body[0]
    if isinstance(tree, ast.FunctionDef) and ast.get_docstring(tree):
        tree.body = tree.body[1:]
    return tree


def _difference(source: str, code: str) -> tuple[str, str]:
    """Return the first line that differs, in the source and in the changed code; "" in the latter if it is left out."""
    original, replacement = source.splitlines(), code.splitlines()
    line = next(i for i, (old, new) in enumerate(zip(original, [*replacement, ""], strict=False)) if old != new)
    left_out = len(replacement) < len(original) or replacement[line].strip() == "pass"
    return original[line].strip(), "" if left_out else replacement[line].strip()
