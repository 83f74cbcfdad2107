"""Errors that say in one sentence what to do: an interrupt, a cell that stops, and a name of a cell that has not run.

`begin` of a lesson asks for them; `kernel_start.py` lets every kernel of an environment do so before the first cell.
"""

import ast
import json
import os
import traceback
from collections.abc import Iterator
from pathlib import Path

from grpo_lab.base.language import _, fill

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_WITH_OWN_NAMES = (
    *(*_DEFINITIONS, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)


class CellStopped(Exception):
    """The end of a cell that waits for its reader; its text says for what."""


def explain_errors(shell) -> None:
    """From now on, show an interrupt as one line, and an undefined name with the cell that defines it."""
    shell.set_custom_exc((KeyboardInterrupt, CellStopped, NameError), _show)


def _show(shell, kind: type, error: BaseException, trace, tb_offset: int | None = None) -> None:
    if isinstance(error, KeyboardInterrupt):
        lines = [str(_("Interrupted. What ran before is kept; run the cell again to start over."))]
    elif isinstance(error, CellStopped):
        lines = [str(error)]
    else:
        lines = shell.InteractiveTB.structured_traceback(kind, error, trace, tb_offset=tb_offset)
        folder = os.path.basename(os.path.dirname(traceback.extract_tb(trace)[-1].filename))
        if type(error) is NameError and folder.startswith("ipykernel_"):  # not within a library
            lines = [*lines, "", str(_missing(error.name))]
    shell._showtraceback(kind, error, lines)


def _missing(name: str) -> str:
    sources = _cells(os.environ.get("JPY_SESSION_NAME", ""))  # set by JupyterLab: the path of the notebook
    first = first_line_that_makes(name, sources)
    if first is None:
        return _(fill("No cell of this notebook defines {0}. Is it spelt correctly?", f"`{name}`")) if sources else ""
    return _(fill("{0} is defined in the cell that begins with {1}. Run that cell first, or all cells above this one "
                  "(menu Run).", f"`{name}`", f"`{first}`"))  # fmt: skip


def _cells(path: str) -> list[str]:
    """The code of the notebook, as it was last saved; none where it cannot be read."""
    try:
        cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError):
        return []
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def first_line_that_makes(name: str, sources: list[str]) -> str | None:
    """Return the first line of the first cell that assigns, defines or imports the name, or None.

    A name within a function, a class or a comprehension of a cell is no name of the notebook.
    """
    for source in sources:
        try:
            nodes = list(_of_the_cell(ast.parse(source)))
        except SyntaxError:  # a cell with `%` or `!`
            continue
        names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        names |= {node.name for node in nodes if isinstance(node, _DEFINITIONS)}
        imports = (node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)))
        names |= {alias.asname or alias.name.partition(".")[0] for node in imports for alias in node.names}
        if name in names:
            return next(line for line in source.splitlines() if line.strip())
    return None


def _of_the_cell(node: ast.AST) -> Iterator[ast.AST]:
    """Walk through a cell; of what has names of its own (a function, a class, a comprehension) only its own node."""
    yield node
    if not isinstance(node, _WITH_OWN_NAMES):
        for child in ast.iter_child_nodes(node):
            yield from _of_the_cell(child)
