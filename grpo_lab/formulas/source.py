r"""Read the equations of a function from its docstring, and the statements that compute them from its code.

A docstring line `LATEX \tag{2.10}` is an equation, here of notebook 02. Its anchor is the comment `# P 1 (2.10)` at
the end of the first or last line of the statement that computes it; the anchor states the shape of the value. The
source is only parsed, never executed.
"""

import ast
import functools
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from grpo_lab.base.checks import InputError

TAGGED = re.compile(r"(?P<latex>.*\S)\s*\\tag\{(?P<tag>\d+\.\d+)\}")
ANCHOR = re.compile(r"#\s*(?P<shape>(?:(?:[A-Z]\w*|\d+|scalar)\s+)*)\((?P<tag>\d+\.\d+)\)")


@dataclass(frozen=True)
class Equation:
    """An equation and the statement that computes it."""

    tag: str  # number of the equation, such as "2.10"
    latex: str
    code: str  # source of the statement, without its anchor
    lineno: int
    end_lineno: int
    names: tuple[str, ...]  # variables that the statement assigns; empty for a `return`
    shape: str  # axes of the value, such as "P 1"
    function: str  # module and qualified name of the function


class _TaggedLine(NamedTuple):
    """An equation as a line of a docstring states it."""

    tag: str
    latex: str


class _AnchoredStatement(NamedTuple):
    """A statement with an anchor, and the tag and the shape that the anchor states."""

    tag: str
    shape: str
    statement: ast.stmt


def read_equations(function: Callable) -> list[Equation]:
    """Return the equations of a function, each with the statement that computes it, in order.

    Raises:
        InputError: if the tags in the docstring and the anchors in the code differ, or one of them is malformed.
    """
    function = inspect.unwrap(function)
    if not inspect.isfunction(function) or function.__name__ == "<lambda>":
        raise InputError("function", function, "expected a function or method written in Python, with def")
    name = f"{function.__module__}.{function.__qualname__}"
    lines, first_lineno = inspect.getsourcelines(function)
    source = textwrap.dedent("".join(lines))
    function_tree = next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    try:
        tagged_lines = _tagged_lines(function_tree, source)
        anchored_statements = _anchored_statements(function_tree, source)
        docstring_tags = [line.tag for line in tagged_lines]
        code_tags = [anchored.tag for anchored in anchored_statements]
        if docstring_tags != code_tags:
            lists = (", ".join(f"({tag})" for tag in tags) or "none" for tags in (docstring_tags, code_tags))
            raise InputError("the equations are {}, and the lines of code {}".format(*lists))
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    equations = []
    for (tag, latex), (_, shape, statement) in zip(tagged_lines, anchored_statements, strict=True):
        code, start = _code_without_anchor(statement, source), statement.lineno + first_lineno - 1
        end, names = start + code.count("\n"), _assigned_names(statement)
        equations.append(Equation(tag, latex, code, start, end, names, shape, name))
    return equations


@functools.lru_cache(maxsize=256)  # the lines of a file are often searched one after the other
def trailing_comments(source: str) -> tuple[tuple[int, str], ...]:
    """Return the comments at the ends of lines of code, as pairs of line number and comment."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    return tuple((t.start[0], t.string) for t in comments if t.line[: t.start[1]].strip())


def _tagged_lines(function: ast.FunctionDef, source: str) -> list[_TaggedLine]:
    """Return the equations of the docstring, in order."""
    text, literal = ast.get_docstring(function) or "", ast.get_source_segment(source, function.body[0]) or ""
    if not text or r"\tag" not in literal:
        return []
    if not re.match(r"[rR]['\"]", literal):
        raise InputError(r'the docstring is not raw: write r"""...""", or \t in \tag becomes a tab')
    tagged_lines = []
    for line in text.splitlines():
        if r"\tag" not in line:
            continue
        match = TAGGED.fullmatch(line.strip())
        if match is None or r"\tag" in match["latex"]:
            raise InputError(rf"one equation per line, ending in one \tag{{n.m}}; the line is {line.strip()!r}")
        tagged_lines.append(_TaggedLine(match["tag"], match["latex"]))
    return tagged_lines


def _anchored_statements(function: ast.FunctionDef, source: str) -> list[_AnchoredStatement]:
    """Return the statements that have an anchor, in the order of the code."""
    assignments = (ast.Assign, ast.AnnAssign, ast.AugAssign)
    statements = [
        statement
        for statement in ast.walk(function)
        if isinstance(statement, ast.Return) or (isinstance(statement, assignments) and _assigned_names(statement))
    ]
    anchored_statements: list[_AnchoredStatement] = []
    for line, comment in trailing_comments(source):
        match = ANCHOR.fullmatch(comment)
        if not match:
            continue
        tag = match["tag"]
        if not match["shape"]:
            raise InputError(f"anchor ({tag}) does not state the shape of its value, as in # P 1 ({tag})")
        candidates = [s for s in statements if line in (s.lineno, s.end_lineno)]
        if not candidates:
            raise InputError(f"anchor ({tag}) is on neither an assignment to variables nor a return")
        if any(candidates[-1] is anchored.statement for anchored in anchored_statements):
            raise InputError(f"anchor ({tag}) is on a statement that already has one; one equation, one line")
        anchored_statements.append(_AnchoredStatement(tag, " ".join(match["shape"].split()), candidates[-1]))
    return anchored_statements


def _code_without_anchor(statement: ast.stmt, source: str) -> str:
    """Return the source of a statement without its anchor."""
    block = source.splitlines()[statement.lineno - 1 : statement.end_lineno]
    return textwrap.dedent("\n".join(re.sub(rf"\s*{ANCHOR.pattern}\s*$", "", line) for line in block))


def _assigned_names(statement: ast.stmt) -> tuple[str, ...]:
    """Return the variables that an assignment such as `x = ...`, `x += ...` or `x, y = ...` binds."""
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    variables = [variable for target in targets for variable in getattr(target, "elts", [target])]
    return tuple(variable.id for variable in variables) if all(isinstance(v, ast.Name) for v in variables) else ()
