"""Make mutants of the anchored lines: the lines of mathematics whose comment ends in the tag of an equation."""

import ast
from collections.abc import Iterator

from grpo_lab.formulas.source import ANCHOR, trailing_comments
from tests.mutants.mutant import ROOT, Mutant, enclosing_function, files_of_tests, read
from tests.mutants.operators import variants


def anchored_modules() -> list[str]:
    """Return the files with anchored lines, without those of the course, whose exercises may repeat such lines."""
    paths = (p.relative_to(ROOT).as_posix() for p in sorted((ROOT / "grpo_lab").rglob("*.py")))
    return [path for path in paths if path.split("/")[1] not in ("course", "formulas") and anchors(read(path))]


def anchors(source: str) -> dict[str, int]:
    """Return the line number of each tag, from the comments `# P 1 (n.m)` at the ends of lines."""
    anchors = ((ANCHOR.fullmatch(comment), line) for line, comment in trailing_comments(source))
    return {match["tag"]: line for match, line in anchors if match}


def line_mutants(path: str) -> list[Mutant]:
    """Return every mutant of every anchored line of a file, including those that `equivalent` lists."""
    source = read(path)
    return [m for tag, line in anchors(source).items() for m in _of_line(path, source, tag, line)]


def _of_line(path: str, source: str, tag: str, line: int) -> Iterator[Mutant]:
    tree = ast.parse(source)
    statements = [s for s in ast.walk(tree) if isinstance(s, ast.stmt) and not hasattr(s, "body")]
    statement = next(s for s in reversed(statements) if line in (s.lineno, s.end_lineno))
    original, texts, function = ast.unparse(statement), set(), enclosing_function(source, line)
    for new in variants(statement):
        text = ast.unparse(new)
        if text not in texts | {original}:
            texts.add(text)
            new = _replaced(source, statement, text)
            yield Mutant(f"({tag}) {text}", path, function, source, new, files_of_tests(path))


def _replaced(source: str, statement: ast.stmt, text: str) -> str:
    lines = source.splitlines(keepends=True)
    indent = " " * statement.col_offset
    # The number of lines stays, so that every other statement keeps its line number.
    blank = "\n" * (statement.end_lineno - statement.lineno)
    return "".join([*lines[: statement.lineno - 1], f"{indent}{text}\n{blank}", *lines[statement.end_lineno :]])
