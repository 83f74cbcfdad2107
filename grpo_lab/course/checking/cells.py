"""Which text of a notebook's cells is in memory: what IPython says of each cell before and after it runs.

A cell that failed before it came to its function leaves the older one in memory, and one that was run anew puts another
one in. Both are seen. What was edited and not run is not: the kernel has no sight of the page, and the file is saved
later, if at all.
"""

import ast
import re
import sys
from typing import Any

DEFINITION = re.compile(r"^(?:async )?def (\w+)", re.MULTILINE)


class Cells:
    """Keeps, by the name of the function, what the cells that were run have defined.

    texts: of the function, as it was run last. stale: the older functions of those whose last cell failed before it
    made one.
    """

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.stale: dict[str, Any] = {}
        self._before: dict[str, Any] = {}
        self._shell: Any = None

    def watch(self) -> None:
        """Listen to IPython from now on, where there is one; it is not imported for the question."""
        ipython = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython is not None else None
        if shell is None or shell is self._shell:
            return
        self._shell = shell
        shell.events.register("pre_run_cell", self._begin)
        shell.events.register("post_run_cell", self._end)

    def _begin(self, info: Any) -> None:
        texts = _defined_in(info.raw_cell or "")
        self._before = {name: self._shell.user_ns.get(name) for name in texts}
        self.texts |= texts
        for name in texts:
            self.stale.pop(name, None)

    def _end(self, result: Any) -> None:
        if not result.success:
            namespace = self._shell.user_ns
            self.stale |= {name: old for name, old in self._before.items() if namespace.get(name) is old}
        self._before = {}

    def is_stale(self, function: Any) -> bool:
        """Recognise a function that the page does not have any more: the cell of its name was run again, and failed."""
        return function is not None and any(function is old for old in self.stale.values())


def _defined_in(cell: str) -> dict[str, str]:
    """The functions at the top level of a cell, with their text; where it cannot be parsed, the text is the cell."""
    try:
        functions = [node for node in ast.parse(cell).body if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError):
        return dict.fromkeys(DEFINITION.findall(cell), cell)
    return {node.name: ast.get_source_segment(cell, node) or "" for node in functions}


CELLS = Cells()
