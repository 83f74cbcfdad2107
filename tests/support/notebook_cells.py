"""Read the cells of a notebook, and the functions that its code shows."""

import ast


def cells(notebook: dict, kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


def shown_functions(notebook: dict) -> set[str]:
    """Return the names of the functions that code cells pass to `show` or `trace`."""
    names = set()
    for text in cells(notebook, "code"):
        tree = ast.parse("\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in text.splitlines()))
        for call in [node for node in ast.walk(tree) if isinstance(node, ast.Call)]:
            if last_name(call.func) in ("show", "trace"):
                names.update(filter(None, map(last_name, call.args)))
    return names


def last_name(node: ast.expr) -> str | None:
    return getattr(node, "attr", getattr(node, "id", None))
