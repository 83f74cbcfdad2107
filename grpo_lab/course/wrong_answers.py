"""Wrong answers that are the right one but for a line: written as the line that stands there instead.

    changed(token_entropy, {"1.8": "entropy = (logp.exp() * logp).sum(-1)"})

The difference is applied to the live source of the reference, so the two cannot drift apart: an address that is that of
no line is an error.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from types import FunctionType

from grpo_lab.formulas.lines import with_lines


def changed(reference: Callable, lines: Mapping[str, str]) -> Callable:
    """A function with the arguments of the reference that makes the mistake; built when it is first called.

    Args:
        reference: a function with its own source.
        lines: by address (see `grpo_lab.formulas.lines`), what stands there instead.

    Raises:
        ValueError: when it is called, if an address is that of no line, or of several.
    """

    @cache
    def built() -> Callable:
        right = inspect.unwrap(reference)
        return built_anew(right, with_lines(source_of(right), lines))

    def wrong(*args, **kwargs):
        return built()(*args, **kwargs)

    wrong.__signature__ = inspect.signature(reference)
    wrong.__name__ = wrong.__qualname__ = f"changed_{reference.__name__}"
    return wrong


def source_of(function: FunctionType) -> str:
    """The live source of a function, at the margin."""
    return textwrap.dedent(inspect.getsource(function))


def built_anew(reference: FunctionType, source: str | ast.Module, file: str = "") -> Callable:
    """The function of this source that has the reference's name, undecorated, among the names that its module has.

    file: the name that a traceback gives to the source.
    """
    names, tree = dict(reference.__globals__), ast.parse(source) if isinstance(source, str) else source
    for node in tree.body:
        node.decorator_list = []
    exec(compile(tree, file or f"<{reference.__name__}, changed>", "exec"), names)
    return names[reference.__name__]
