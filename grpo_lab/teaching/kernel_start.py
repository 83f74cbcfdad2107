"""Errors in a notebook that tell the reader in one sentence what to do, from the start of a kernel on.

They are shown for an interrupt and for a name whose cell has not run yet. A lesson turns them on by `begin`; as an
extension of IPython, this module turns them on for every kernel, before its first cell. `python -m
grpo_lab.teaching.kernel_start` (in `make setup`) writes the configuration that loads the extension in every kernel of
the environment. Nothing heavy is imported here, since it would delay the start of each kernel.
"""

import ast
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from grpo_lab.base.language import _, fill, set_language_from_folder
from grpo_lab.base.user_code import parse_cell

CONFIGURATION = """# Written by grpo_lab: a cell that is run too early says which cell to run first.
c.InteractiveShellApp.extensions.append("grpo_lab.teaching.kernel_start")
"""
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_NEW_SCOPES = (*_DEFINITIONS, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def load_ipython_extension(shell) -> None:
    """Explain errors in the language of the folder in which the kernel starts; IPython calls this function."""
    set_language_from_folder(Path.cwd())
    explain_errors(shell)


def explain_errors_in_every_kernel(environment: Path) -> Path | None:
    """Write the configuration that loads this extension in every kernel of a Python environment.

    Args:
        environment: The folder of the environment (`sys.prefix`).

    Returns:
        The configuration file; None if there is a different configuration already, which is left as it is.
    """
    file = environment / "etc" / "ipython" / "ipython_kernel_config.py"
    if file.exists() and file.read_text(encoding="utf-8") != CONFIGURATION:
        return None
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(CONFIGURATION, encoding="utf-8")
    return file


def explain_errors(shell) -> None:
    """Make an IPython shell show an interrupt as one line, and an undefined name with the cell that defines it."""
    shell.set_custom_exc((KeyboardInterrupt, NameError), _show_error)


def _show_error(shell, kind: type, error: BaseException, trace, tb_offset: int | None = None) -> None:
    if isinstance(error, KeyboardInterrupt):
        lines = [str(_("Interrupted. What ran before is kept; run the cell again to start over."))]
    else:
        lines = shell.InteractiveTB.structured_traceback(kind, error, trace, tb_offset=tb_offset)
        folder = os.path.basename(os.path.dirname(traceback.extract_tb(trace)[-1].filename))
        is_raised_in_cell = folder.startswith("ipykernel_")  # and not in a library
        if type(error) is NameError and error.name is not None and is_raised_in_cell:
            lines = [*lines, "", str(where_defined(error.name))]
    shell._showtraceback(kind, error, lines)


def where_defined(name: str) -> str:
    """Return a sentence that names the cell in which a name is defined; "" if the notebook cannot be read."""
    sources = _read_code_cells(os.environ.get("JPY_SESSION_NAME", ""))  # JupyterLab sets it to the path of the notebook
    first_line = first_line_of_defining_cell(name, sources)
    if first_line is None:
        return _(fill("No cell of this notebook defines {0}. Is it spelt correctly?", f"`{name}`")) if sources else ""
    return _(fill("{0} is defined in the cell that begins with {1}. Run that cell first, or all cells above this one "
                  "(menu Run).", f"`{name}`", f"`{first_line}`"))  # fmt: skip


def _read_code_cells(path: str) -> list[str]:
    """Return the code cells of a notebook as it was last saved; an empty list if it cannot be read."""
    try:
        cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError):
        return []
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def first_line_of_defining_cell(name: str, sources: list[str]) -> str | None:
    """Return the first line of the first cell that assigns, defines or imports the name; None without such a cell.

    Names inside a function, a class or a comprehension do not count, since other cells cannot use them.

    Args:
        name: A name that a cell uses.
        sources: The code of the cells, in order. A cell that Python cannot parse is skipped.
    """
    for source in sources:
        tree = parse_cell(source)
        nodes = list(_nodes_of_cell(tree)) if tree is not None else []
        names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        names |= {node.name for node in nodes if isinstance(node, _DEFINITIONS)}
        imports = (node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)))
        names |= {alias.asname or alias.name.partition(".")[0] for node in imports for alias in node.names}
        if name in names:
            return next(line for line in source.splitlines() if line.strip())
    return None


def _nodes_of_cell(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a cell, without the nodes inside functions, classes and comprehensions."""
    yield node
    if not isinstance(node, _NEW_SCOPES):
        for child in ast.iter_child_nodes(node):
            yield from _nodes_of_cell(child)


if __name__ == "__main__":
    configuration_file = explain_errors_in_every_kernel(Path(sys.prefix))
    print(configuration_file or f"{sys.prefix} already has another ipython_kernel_config.py, which is left as it is")
