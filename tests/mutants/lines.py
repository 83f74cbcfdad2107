"""Mutants of the anchored lines: every line of mathematics whose comment ends in the tag of its equation."""

import ast
from collections.abc import Iterator

from grpo_lab.formulas.source import ANCHOR, trailing_comments
from tests.mutants.mutant import ROOT, Mutant, files_of_tests, place_of, read
from tests.mutants.operators import variants


def anchored_modules() -> list[str]:
    """Files of the package with anchored lines; not the course, whose exercises may repeat them."""
    paths = (p.relative_to(ROOT).as_posix() for p in sorted((ROOT / "grpo_lab").rglob("*.py")))
    return [path for path in paths if path.split("/")[1] not in ("course", "formulas") and anchors(read(path))]


def anchors(source: str) -> dict[str, int]:
    """{tag: line number} of the comments `# P 1 (n.m)` that end a line."""
    anchors = ((ANCHOR.fullmatch(comment), line) for line, comment in trailing_comments(source))
    return {match["tag"]: line for match, line in anchors if match}


def line_mutants(path: str) -> list[Mutant]:
    """Every mutant of every anchored line of a file; those that `equivalent` lists among them."""
    source = read(path)
    return [m for tag, line in anchors(source).items() for m in _of_line(path, source, tag, line)]


def _of_line(path: str, source: str, tag: str, line: int) -> Iterator[Mutant]:
    tree = ast.parse(source)
    statements = [s for s in ast.walk(tree) if isinstance(s, ast.stmt) and not hasattr(s, "body")]
    statement = next(s for s in reversed(statements) if line in (s.lineno, s.end_lineno))
    original, seen, function = ast.unparse(statement), set(), place_of(source, line)
    for new in variants(statement):
        text = ast.unparse(new)
        if text not in seen | {original}:
            seen.add(text)
            new = _replaced(source, statement, text)
            yield Mutant(f"({tag}) {text}", path, function, source, new, files_of_tests(path))


def _replaced(source: str, statement: ast.stmt, text: str) -> str:
    lines = source.splitlines(keepends=True)
    indent = " " * statement.col_offset
    # As many lines as before, so that every other statement keeps its number.
    blank = "\n" * (statement.end_lineno - statement.lineno)
    return "".join([*lines[: statement.lineno - 1], f"{indent}{text}\n{blank}", *lines[statement.end_lineno :]])
