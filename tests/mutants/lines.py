"""Mutants of the anchored lines: every line of mathematics whose comment ends in the tag of its equation."""

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import PurePosixPath

from grpo_lab.formulas.source import ANCHOR
from tests.course.proof.operators import variants
from tests.mutants.mutant import ROOT, Mutant, make_mutant, read


def anchored_modules() -> list[str]:
    """Files of the package with anchored lines; not the course, whose exercises may repeat them."""
    found = (p.relative_to(ROOT).as_posix() for p in sorted((ROOT / "grpo_lab").rglob("*.py")))
    return [path for path in found if not _left_out(PurePosixPath(path)) and anchors(read(path))]


def _left_out(path: PurePosixPath) -> bool:
    return path.parts[1] in ("course", "formulas")


def anchors(source: str) -> dict[str, int]:
    """{tag: line number} of the comments `# P 1 (n.m)` that end a line."""
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        match = token.type == tokenize.COMMENT and ANCHOR.fullmatch(token.string.strip())
        if match:
            found[match["tag"]] = token.start[0]
    return found


def line_mutants(path: str) -> list[Mutant]:
    """Every mutant of every anchored line of a file; those that `equivalent` lists among them."""
    source = read(path)
    return [m for tag, line in anchors(source).items() for m in _of_line(path, source, tag, line)]


def _of_line(path: str, source: str, tag: str, line: int) -> Iterator[Mutant]:
    tree = ast.parse(source)
    statements = [s for s in ast.walk(tree) if isinstance(s, ast.stmt) and not hasattr(s, "body")]
    statement = next(s for s in reversed(statements) if line in (s.lineno, s.end_lineno))
    before, seen = ast.unparse(statement), set()
    for new in variants(statement):
        text = ast.unparse(new)
        if text not in seen | {before}:
            seen.add(text)
            yield make_mutant(f"({tag}) {text}", path, line, source, _replaced(source, statement, text))


def _replaced(source: str, statement: ast.stmt, text: str) -> str:
    lines = source.splitlines(keepends=True)
    indent = " " * statement.col_offset
    # As many lines as before, so that every other statement keeps its number.
    blank = "\n" * (statement.end_lineno - statement.lineno)
    return "".join([*lines[: statement.lineno - 1], f"{indent}{text}\n{blank}", *lines[statement.end_lineno :]])
