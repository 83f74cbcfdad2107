"""Find a line of a function by what it does, and put another in its place.

    with_lines(source, {"5.5": "surrogate = torch.max(bounded * advantages, clipped * advantages)"})

An address says nothing that a local name could change. It is the tag of the line's equation, as in "5.5"; or the
function that this line alone calls, as in "kl_estimate()"; or, where a line has neither, a marker that ends it, as in
"[padding]". A line of the first two kinds is a whole statement, or the head of one with a body; a marked line is that
line alone.
"""

import ast
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import CodeType

from grpo_lab.formulas.source import ANCHOR, comments_behind_code

MARKER = re.compile(r" *# (\[[a-z]+\])$", re.MULTILINE)
_DEFINED = ast.FunctionDef | ast.ClassDef
_PARTS_OF_A_BODY = ast.stmt | ast.excepthandler | ast.match_case


def with_lines(source: str, lines: Mapping[str, str], inside: str = "") -> str:
    """The source with other lines at these addresses, indented as those that stood there; "" leaves a line out.

    A comment at the end of a line stays: it says its shape and its equation.

    Args:
        source: of a function or a module.
        lines: what is to stand at each address.
        inside: the qualified name of the function, where the source has others beside it.

    Raises:
        ValueError: if an address is that of no line, or of several.
    """
    replacements = {line_at(source, address, inside): line for address, line in lines.items()}
    rows, comments = source.splitlines(), dict(comments_behind_code(source))
    for (first, last), line in sorted(replacements.items(), reverse=True):
        indent = rows[first - 1][: len(rows[first - 1]) - len(rows[first - 1].lstrip())]
        new = textwrap.indent(textwrap.dedent(line), indent).splitlines()
        if new and last in comments:
            new[-1] += f"  {comments[last]}"
        rows[first - 1 : last] = new
    return "\n".join(rows) + "\n"


def line_at(source: str, address: str, inside: str = "") -> tuple[int, int]:
    """The numbers of the first and the last line at an address."""
    heads = [(s, (s.lineno, _end_of_head(s))) for s in _statements(ast.parse(source), inside)]
    if address.endswith("()"):
        spans = [span for s, span in heads if address[:-2] in _called(s)]
    else:
        ends = [number for number, comment in comments_behind_code(source) if address == _name(comment)]
        enclosing = [[span for _, span in heads if span[0] <= number <= span[1]] for number in ends]
        spans = [max(candidates) for candidates in enclosing if candidates]
        if address.startswith("["):
            spans = [(number, number) for number, candidates in zip(ends, enclosing, strict=True) if candidates]
    if len(spans) != 1:
        raise ValueError(f"{address!r} is the address of {len(spans)} lines of {inside or 'the source'}; expected one")
    return spans[0]


@contextmanager
def running(source: str, module: str, function: str) -> Iterator[None]:
    """Run the function of this qualified name, inside the `with`, as another source of its module has it.

    Whoever imported a function holds the function object, so its code is exchanged inside the object, and its
    decorators stay.
    """
    compiled = compile(source, inspect.getfile(importlib.import_module(module)), "exec", dont_inherit=True)
    target = inspect.unwrap(pkgutil.resolve_name(f"{module}:{function}"))
    original_code, target.__code__ = (
        target.__code__,
        next(code for code in _codes(compiled) if code.co_qualname == function),
    )
    try:
        yield
    finally:
        target.__code__ = original_code


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def without_markers(source: str) -> str:
    """The source as readers are shown it: a marker may stand where a mistake is planted."""
    return MARKER.sub("", source)


def _name(comment: str) -> str:
    """The tag or the marker that a comment is, or ""."""
    tag, marker = ANCHOR.fullmatch(comment), MARKER.fullmatch(comment)
    return tag["tag"] if tag else marker[1] if marker else ""


def _statements(tree: ast.AST, inside: str) -> list[ast.stmt]:
    """Every statement within the function or class of that name."""
    for name in inside.split(".") if inside else ():
        tree = next((s for s in ast.walk(tree) if isinstance(s, _DEFINED) and s.name == name), ast.Module([], []))
    return [s for s in ast.walk(tree) if isinstance(s, ast.stmt) and not isinstance(s, _DEFINED)]


def _end_of_head(statement: ast.stmt) -> int:
    if isinstance(statement, ast.Match):
        return statement.subject.end_lineno or statement.lineno
    body = getattr(statement, "body", None)
    return max(body[0].lineno - 1, statement.lineno) if body else statement.end_lineno or statement.lineno


def _called(statement: ast.stmt) -> set[str]:
    """The names of the functions and methods that a statement calls itself, and not in its body."""
    parts = [part for part in ast.iter_child_nodes(statement) if not isinstance(part, _PARTS_OF_A_BODY)]
    calls = [node.func for part in parts for node in ast.walk(part) if isinstance(node, ast.Call)]
    return {getattr(function, "id", getattr(function, "attr", "")) for function in calls}
