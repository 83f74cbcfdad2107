"""Wrong answers that are the right one but for an expression: written as that difference.

    changed(token_entropy, ("-(logp.exp() * logp)", "(logp.exp() * logp)"))

The difference is applied to the live source of the reference, so the two cannot drift apart: a reference in which the
expression no longer stands once is an error.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable
from functools import cache
from types import FunctionType


def changed(reference: Callable, *pairs: tuple[str, str]) -> Callable:
    """A function with the arguments of the reference that makes the mistake; built when it is first called.

    Args:
        reference: a function with its own source.
        pairs: what stands exactly once in the reference's body, and what stands there instead; one after the other.

    Raises:
        ValueError: when it is called, if one of the expressions does not stand there exactly once.
    """

    @cache
    def built() -> Callable:
        return _built(inspect.unwrap(reference), pairs)

    def wrong(*args, **kwargs):
        return built()(*args, **kwargs)

    wrong.__signature__ = inspect.signature(reference)
    wrong.__name__ = wrong.__qualname__ = f"changed_{reference.__name__}"
    return wrong


def _built(reference: FunctionType, pairs: tuple[tuple[str, str], ...]) -> Callable:
    tree = tree_of(reference)
    tree.decorator_list, source = [], ast.unparse(tree)
    for before, after in pairs:
        if source.count(before) != 1:
            raise ValueError(f"{reference.__name__} has {before!r} {source.count(before)} times; expected it once")
        source = source.replace(before, after)
    return built_anew(reference, source)


def tree_of(function: FunctionType) -> ast.stmt:
    """The live source of a function, without its docstring."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    if isinstance(tree, ast.FunctionDef) and ast.get_docstring(tree):
        tree.body = tree.body[1:]
    return tree


def built_anew(reference: FunctionType, source: str | ast.Module) -> Callable:
    """The function of this source that has the reference's name, in a copy of the names that its module has."""
    names = dict(reference.__globals__)
    exec(compile(source, f"<{reference.__name__}, changed>", "exec"), names)
    return names[reference.__name__]
