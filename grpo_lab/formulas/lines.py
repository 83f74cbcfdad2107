"""Find a line of a function by its address, and replace it.

    with_lines(source, {"5.5": "surrogate = torch.max(bounded * advantages, clipped * advantages)"})

An address stays valid if local names change. There are three kinds: the tag of the line's equation, as in "5.5"; a
function that no other line calls, as in "kl_estimate()"; and, for lines with neither, a marker at their end, as in
"[padding]". A tag or a call addresses a whole statement, or the head of a statement that has a body. A marker addresses
only its own line.
"""

import ast
import functools
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import CodeType

from grpo_lab.formulas.source import ANCHOR, trailing_comments

MARKER = re.compile(r" *# (\[[a-z]+\])$", re.MULTILINE)
_DEFINITION = ast.FunctionDef | ast.ClassDef
_PARTS_OF_A_BODY = ast.stmt | ast.excepthandler | ast.match_case


def with_lines(source: str, lines: Mapping[str, str], inside: str = "") -> str:
    """Return the source with the lines at some addresses replaced; the new lines get the indentation of the old ones.

    A comment at the end of a replaced line is kept, since it states the shape and the equation.

    Args:
        source: The source of a function or a module.
        lines: {address: new line}; "" deletes the line.
        inside: The qualified name of the function that contains the addresses; "" takes the whole source.

    Raises:
        ValueError: if an address matches no line, or several.
    """
    replacements = {span_at(source, address, inside): line for address, line in lines.items()}
    source_lines, comments = source.splitlines(), dict(trailing_comments(source))
    for (first, last), line in sorted(replacements.items(), reverse=True):
        first_line = source_lines[first - 1]
        indent = first_line[: len(first_line) - len(first_line.lstrip())]
        new_lines = textwrap.indent(textwrap.dedent(line), indent).splitlines()
        if new_lines and last in comments:
            new_lines[-1] += f"  {comments[last]}"
        source_lines[first - 1 : last] = new_lines
    return "\n".join(source_lines) + "\n"


def span_at(source: str, address: str, inside: str = "") -> tuple[int, int]:
    """Return the span of an address: the numbers of its first and its last line.

    Args:
        source: The source of a function or a module.
        address: A tag, a call or a marker, as the module's docstring describes.
        inside: The qualified name of the function that contains the address; "" takes the whole source.

    Raises:
        ValueError: if the address matches no line, or several.
    """
    heads = _statement_heads(source, inside)
    if address.endswith("()"):
        spans = [span for s, span in heads if address[:-2] in _called_names(s)]
    else:
        spans = []
        for number, comment in trailing_comments(source):
            enclosing_spans = [span for _, span in heads if span[0] <= number <= span[1]]
            if address == _address_of(comment) and enclosing_spans:
                is_marker = address.startswith("[")
                spans.append((number, number) if is_marker else max(enclosing_spans))
    if len(spans) != 1:
        raise ValueError(f"{address!r} is the address of {len(spans)} lines of {inside or 'the source'}; expected one")
    return spans[0]


@contextmanager
def replaced_code(source: str, module: str, function: str) -> Iterator[None]:
    """Replace the code of a function, within the context, by its code in another source of its module.

    The code is replaced inside the function object, so the change also reaches modules that have imported the
    function, and its decorators are kept.

    Args:
        source: The source of the whole module.
        module: The name of the module.
        function: The qualified name of the function.
    """
    compiled = compile(source, inspect.getfile(importlib.import_module(module)), "exec", dont_inherit=True)
    target = inspect.unwrap(pkgutil.resolve_name(f"{module}:{function}"))
    original_code = target.__code__
    target.__code__ = next(code for code in _code_objects(compiled) if code.co_qualname == function)
    try:
        yield
    finally:
        target.__code__ = original_code


def _code_objects(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those of all functions and classes that are defined inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_objects(constant)


def without_markers(source: str) -> str:
    """Return the source without its markers, which would show readers where a mistake can be planted."""
    return MARKER.sub("", source)


def _address_of(comment: str) -> str:
    """Return the address that a comment gives to its line: a tag or a marker, or "" for another comment."""
    if tag := ANCHOR.fullmatch(comment):
        return tag["tag"]
    if marker := MARKER.fullmatch(comment):
        return marker[1]
    return ""


@functools.lru_cache(maxsize=32)  # several lines of a source are often replaced one after the other
def _statement_heads(source: str, inside: str) -> list[tuple[ast.stmt, tuple[int, int]]]:
    """Return each statement with the span of its head: those within a function or class, or all of the source.

    inside: The qualified name of the function or class; "" takes the whole source.
    """
    tree: ast.AST = ast.parse(source)
    for name in inside.split(".") if inside else ():
        tree = next((s for s in ast.walk(tree) if isinstance(s, _DEFINITION) and s.name == name), ast.Module([], []))
    statements = [s for s in ast.walk(tree) if isinstance(s, ast.stmt) and not isinstance(s, _DEFINITION)]
    return [(statement, (statement.lineno, _end_of_head(statement))) for statement in statements]


def _end_of_head(statement: ast.stmt) -> int:
    """Return the number of the last line before the body of a statement; of its last line if it has no body."""
    if isinstance(statement, ast.Match):
        return statement.subject.end_lineno or statement.lineno
    body = getattr(statement, "body", None)
    return max(body[0].lineno - 1, statement.lineno) if body else statement.end_lineno or statement.lineno


def _called_names(statement: ast.stmt) -> set[str]:
    """Return the names of the functions and methods that a statement calls outside its body."""
    parts = [part for part in ast.iter_child_nodes(statement) if not isinstance(part, _PARTS_OF_A_BODY)]
    calls = [node.func for part in parts for node in ast.walk(part) if isinstance(node, ast.Call)]
    return {getattr(function, "id", getattr(function, "attr", "")) for function in calls}
