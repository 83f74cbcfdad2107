"""Mutants of a reference, made by machine: each differs from it in one place, and a case should tell.

The function itself is changed, and the private functions of its module that it calls. What no case tells from the
reference is a gap in the exercise: it would be accepted if a student wrote it.
"""

import ast
import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType

from grpo_lab.course.checking.compare import equal
from grpo_lab.course.checking.outcome import Outcome, outcome_of
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.guard import guarded
from grpo_lab.course.stub import is_check
from grpo_lab.course.wrong_answers import built_anew, tree_of
from tests.course.proof.operators import mutate_statement, variants

SECONDS = 2.0  # for one case; a mutant may be without end


@dataclass(frozen=True)
class Mutant:
    """function: that is changed. before, after: the statement, as Python writes it; after is "" if it is left out."""

    function: str
    before: str
    after: str
    answer: Callable

    @property
    def name(self) -> str:
        return f"{self.function}: {_line(self.before)} -> {self.change}"

    @property
    def change(self) -> str:
        return _line(self.after) or "nothing"


def mutants(exercise: Exercise) -> Iterator[Mutant]:
    """Every mutant of the reference of an exercise, no two with the same code."""
    reference = inspect.unwrap(exercise.function)
    trees, seen = _trees(reference), set()
    for name, tree in trees.items():
        for before, after, changed in _changes(tree):
            code = ast.unparse(changed)
            if (name, code) not in seen | {(name, ast.unparse(tree))}:
                seen.add((name, code))
                with_change = {**trees, name: changed}
                yield Mutant(
                    name,
                    before,
                    after,
                    built_anew(reference, ast.Module([copy.deepcopy(t) for t in with_change.values()], [])),
                )


def survives(exercise: Exercise, mutant: Mutant, expected: Sequence[Outcome], seed: int = 0) -> bool:
    """Whether no case tells the mutant from the reference, whose outcomes are `expected`."""
    for index, right in enumerate(expected):
        ran = guarded(lambda index=index: outcome_of(mutant.answer, exercise, index, seed), SECONDS)
        if ran.fault or ran.result is None or not equal(ran.result, right, exercise):
            return False
    return True


def _trees(reference: FunctionType) -> dict[str, ast.FunctionDef]:
    """The function and the private ones of its module that it leads to, by name, without docstrings."""
    module, found, waiting = inspect.getmodule(reference), {}, [reference]
    while waiting:
        function = waiting.pop()
        tree = tree_of(function)
        if function.__name__ in found or not isinstance(tree, ast.FunctionDef):
            continue
        found[function.__name__] = tree
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        names = {name for name in names if name.startswith("_") and not name.startswith("_check_")}
        values = (inspect.unwrap(vars(module)[name]) for name in names if callable(vars(module).get(name)))
        waiting += [v for v in values if isinstance(v, FunctionType) and v.__module__ == module.__name__]
    return found


def _changes(tree: ast.FunctionDef) -> Iterator[tuple[str, str, ast.FunctionDef]]:
    """(statement before, after, whole function) of every change in one place of its body."""
    for place, statement in enumerate(_statements(tree)):
        before = ast.unparse(statement)
        for new in _of_statement(statement):
            changed = copy.deepcopy(tree)
            _replace(changed, place, new)
            yield _head(before), _head(ast.unparse(new)) if new else "", ast.fix_missing_locations(changed)


def _of_statement(statement: ast.stmt) -> Iterator[ast.stmt | None]:
    match statement:
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Return():
            if statement.value is not None:
                yield from mutate_statement(statement)
            if isinstance(statement, ast.AugAssign):
                yield None
        case ast.If() | ast.While():
            for test in [*variants(statement.test), ast.UnaryOp(ast.Not(), statement.test)]:
                yield _changed(statement, test=test)
            if isinstance(statement, ast.If):
                yield None
        case ast.For():
            for series in variants(statement.iter):
                yield _changed(statement, iter=series)
        case ast.Expr():
            yield None
            for value in variants(statement.value):
                yield _changed(statement, value=value)


def _statements(tree: ast.FunctionDef) -> list[ast.stmt]:
    """All statements below a function but the checks of its arguments, in the order of `ast.walk`, which a copy keeps.

    No case asks for an error: the checks are given.
    """
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and node is not tree]
    checks = {inner for statement in statements if is_check(statement) for inner in ast.walk(statement)}
    return [statement for statement in statements if statement not in checks]


def _replace(tree: ast.FunctionDef, place: int, new: ast.stmt | None) -> None:
    """Put `new` where that statement is; None leaves it out."""
    old = _statements(tree)[place]
    for node in ast.walk(tree):
        for field, value in ast.iter_fields(node):
            if isinstance(value, list) and old in value:
                where = value.index(old)
                rest = value[:where] + ([new] if new else []) + value[where + 1 :]
                setattr(node, field, rest if rest or field == "orelse" else [ast.Pass()])
                return


def _changed(statement: ast.stmt, **fields) -> ast.stmt:
    new = copy.copy(statement)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _head(text: str) -> str:
    """The first line of a statement: of a block, what is asked."""
    return text.splitlines()[0]


def _line(text: str) -> str:
    return " ".join(text.split())
