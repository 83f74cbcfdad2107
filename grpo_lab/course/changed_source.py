"""Functions made from changed source: a wrong answer is written as the lines in which it differs from the reference.

    with_changed_lines(token_entropy, {"1.8": "entropy = (logp.exp() * logp).sum(-1)"})

The changes are applied to the current source of the reference, so a wrong answer follows every change of the reference.
An address that fits no line of the reference is an error.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from types import FunctionType

from grpo_lab.formulas.lines import with_lines


def with_changed_lines(reference: Callable, lines: Mapping[str, str]) -> Callable:
    """Return a function that computes what the reference computes with these lines in place of its own.

    The function has the reference's signature. It is compiled when it is called for the first time.

    Args:
        reference: The right answer, a function whose source can be read.
        lines: The changed lines, by their address in the reference (see `grpo_lab.formulas.lines`).

    Raises:
        ValueError: When the function is called, if an address fits no line of the reference, or several.
    """

    @cache
    def compiled() -> Callable:
        right = inspect.unwrap(reference)
        return function_from_source(right, with_lines(source_of(right), lines))

    def wrong(*args, **kwargs):
        return compiled()(*args, **kwargs)

    wrong.__signature__ = inspect.signature(reference)  # type: ignore[attr-defined]  # `inspect` reads it
    wrong.__name__ = wrong.__qualname__ = f"changed_{reference.__name__}"
    return wrong


def source_of(function: FunctionType) -> str:
    """Return the current source of a function, without the indentation that it has in its file."""
    return textwrap.dedent(inspect.getsource(function))


def function_from_source(reference: FunctionType, source: str | ast.Module, file: str = "") -> Callable:
    """Compile source in the namespace of the reference's module, and return the function that has the reference's name.

    Args:
        reference: The function whose module supplies the global names.
        source: The source, or its syntax tree; its functions lose their decorators.
        file: The file name that a traceback shows for this source; "" names it after the reference.
    """
    tree = ast.parse(source) if isinstance(source, str) else source
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            node.decorator_list = []
    namespace = dict(reference.__globals__)
    exec(compile(tree, file or f"<{reference.__name__}, changed>", "exec"), namespace)
    return namespace[reference.__name__]
