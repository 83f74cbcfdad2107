"""The Python in a cell of a notebook, in which some lines are for Jupyter: `%magic`, `!command`, `name?`.

`check`, the grading and its sandbox decide here what a cell defines, so that they cannot disagree. This module imports
no torch.
"""

import ast
import re

Function = ast.FunctionDef | ast.AsyncFunctionDef

# Magics that run their cell in the notebook's namespace. `%%timeit` is none of them: it runs the cell in a function.
_MAGIC_IN_NAMESPACE = re.compile(r"%%(?:time|capture|prun)\b")
_JUPYTER_LINE = re.compile(r"^(\s*)(?:[%!?].*|[\w.]+\?{1,2}\s*)$")


def python_of_cell(source: str) -> str | None:
    """Return the Python of a cell, with `pass` for each line that only Jupyter understands.

    Lines keep their numbers. Errors of syntax remain. The result is None if a magic in the first line hands the cell to
    something else than the notebook's namespace, as `%%writefile` and `%%timeit` do.
    """
    lines = source.split("\n")
    for index, line in enumerate(lines):
        if line.startswith("%%"):
            if not _MAGIC_IN_NAMESPACE.match(line):
                return None
            lines[index] = ""
        elif line.strip():
            break
    python = "\n".join(lines)
    if _parse(python) is not None:
        return python
    return "\n".join(_JUPYTER_LINE.sub(r"\1pass", line) for line in lines)


def parse_cell(source: str) -> ast.Module | None:
    """Return the syntax tree of a cell's Python; None if the cell has none, or if it cannot be parsed."""
    python = python_of_cell(source)
    return None if python is None else _parse(python)


def functions_of_cell(source: str) -> list[Function]:
    """Return the functions at the top level of a cell; none if the cell cannot be parsed."""
    tree = parse_cell(source)
    return [node for node in tree.body if isinstance(node, Function)] if tree is not None else []


def _parse(python: str) -> ast.Module | None:
    try:
        return ast.parse(python)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # ValueError: null bytes; the last two: deep nesting
        return None
