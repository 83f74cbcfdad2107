"""Stubs that nobody has touched: one unfinished exercise does not block the next.

A function may call its neighbours: `policy_loss` wants a ratio and a surrogate. While a neighbour is still a stub, the
library's own function stands in for it, in `check` and in `grade`. A neighbour that has been written stands for itself,
right or wrong.
"""

import ast
import re
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from grpo_lab.course.exercises import exercise as find_exercise


def missing_text(name: str) -> str:
    """What an untouched stub raises NotImplementedError with."""
    return f"{name} is not written yet"


@contextmanager
def lent(function: Callable) -> Iterator[None]:
    """Within the block, the stubs among the names that `function` sees are the library's functions."""
    names = getattr(function, "__globals__", None)
    seen = names if isinstance(names, dict) else {}
    blank = {name: value for name, value in seen.items() if _is_stub(name, value) and value is not function}
    seen.update({name: find_exercise(name).function for name in blank})
    try:
        yield
    finally:
        seen.update(blank)


def _is_stub(name: str, value: object) -> bool:
    return type(value) is types.FunctionType and missing_text(name) in value.__code__.co_consts


def untouched(sources: Iterable[str], names: Iterable[str]) -> set[str]:
    """The exercises whose stub stands in a notebook as it was, read from the text of its cells; nothing is run.

    A name that is bound in any other way too (defined, assigned, imported), or that a cell mentions which cannot be
    read, counts as touched.
    """
    found: dict[str, list[bool]] = {name: [] for name in names}
    for source in sources:
        for name, is_stub in _bindings(source, found):
            found[name].append(is_stub)
    return {name for name, stubs in found.items() if stubs and all(stubs)}


def _bindings(source: str, names: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """(name, whether it is bound to an untouched stub) for each place where a cell binds one of the names."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        yield from ((name, False) for name in names if re.search(rf"\b{name}\b", source))
        return
    for node in nodes:
        for name in _bound(node):
            if name in names:
                yield name, isinstance(node, ast.FunctionDef) and _raises_only(node)


def _bound(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return [node.id]
    if isinstance(node, ast.alias):
        return [(node.asname or node.name).split(".")[0]]
    return []


def _raises_only(node: ast.FunctionDef) -> bool:
    """Whether the body, without its docstring, is the one line of a stub."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if len(body) != 1 or not isinstance(body[0], ast.Raise) or not isinstance(body[0].exc, ast.Call):
        return False
    return ast.unparse(body[0].exc) == f"NotImplementedError({missing_text(node.name)!r})"
