"""Which text of a notebook's cells is in memory: what IPython says of each cell, and what the saved notebook says.

A cell that failed before it came to its function leaves the older one in memory. A cell that was changed and not run is
seen once the notebook is saved: the file has then been written since the cell ran, and has another text under the
cell's id. The kernel cannot see what was neither run nor saved. Without an id (VS Code, a terminal) no file is read.
"""

import ast
import dis
import inspect
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

DEFINITION = re.compile(r"^(?:async )?def (\w+)", re.MULTILINE)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
RUN_HERE = re.compile(r"\A%%(?:time|capture|prun)\b.*")  # magics that run their cell in the notebook's own names


@dataclass
class CellRun:
    """A run of a cell."""

    cell_id: str | None
    texts: dict[str, str]  # of the functions at its top level, by name
    code: str  # of all of it, without comments and layout
    previous_objects: dict[str, Any]  # those that had the names of its functions
    saved: tuple | None  # the state of the notebook's file when the run began
    count: int | None = None  # the number in In [7]; None while it runs
    failed: bool = False


@dataclass(frozen=True)
class Mismatch:
    """A function in memory that is not the one of the page."""

    kind: str  # "failed" or "edited"
    name: str  # of the function
    count: int | None  # of the run that made the one in memory
    other_count: int | None = None  # of the run that failed


class Cells:
    """Keeps, by the name of a function, the last run of a cell that has it, and the run that it is from in memory."""

    def __init__(self) -> None:
        self._shell: Any = None
        self.forget()

    def forget(self) -> None:
        self.last: dict[str, CellRun] = {}
        self.sources: dict[str, tuple[CellRun, Any]] = {}
        self._running: list[CellRun] = []

    def watch(self) -> None:
        """Listen to IPython from now on, where there is one; it is not imported for the question."""
        ipython = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython is not None else None
        if shell is None or shell is self._shell:
            return
        self._shell = shell
        self.forget()
        shell.events.register("pre_run_cell", self._begin)
        shell.events.register("post_run_cell", self._end)

    def mismatch(self, function: Any) -> Mismatch | None:
        """Say how the function, or one of the notebook that it calls, is not the one of the page; None if it is."""
        mismatches = map(self._mismatch, self._reachable(function))
        return next((mismatch for mismatch in mismatches if mismatch), None)

    def origin(self, function: Any) -> tuple[int | None, int | None] | None:
        """The number of the run that made the function, and of a later one that failed to, in another cell.

        None for a function that no cell made; a number is None while the cell runs, and where nothing failed.
        """
        source = self._source(function)
        if source is None:
            return None
        name, run = source
        last = self.last.get(name, run)
        return run.count, last.count if last.failed and last is not run else None

    def current(self, name: str) -> Any:
        """The function of this name that is in memory; None if there is none, or outside of IPython."""
        return self._shell.user_ns.get(name) if self._shell is not None else None

    def text(self, name: str) -> str | None:
        """The text of the function of this name that is in memory; None where no cell made it."""
        function = self.current(name)
        source = self._source(function)
        if source is not None:
            return source[1].texts[source[0]]
        return _text_of(function)

    def _begin(self, info: Any) -> None:
        texts = defined_in(info.raw_cell or "")
        previous_objects = {name: self._shell.user_ns.get(name) for name in texts}
        code, saved = (_code(info.raw_cell), _stamp(_notebook())) if texts else ("", None)
        run = CellRun(getattr(info, "cell_id", None), texts, code, previous_objects, saved)
        self._running.append(run)
        self.last |= dict.fromkeys(texts, run)

    def _end(self, result: Any) -> None:
        if not self._running:  # the cell in which the watch began
            return
        run = self._running.pop()
        if result is None:  # IPython itself failed
            return
        run.count, run.failed = result.execution_count, not result.success
        for name in run.texts:
            function = self._shell.user_ns.get(name)
            if function is not None and function is not run.previous_objects[name]:
                self.sources[name] = run, function
        run.previous_objects = {}

    def _source(self, function: Any) -> tuple[str, CellRun] | None:
        """The name under which a cell made this very function, and the run of the cell."""
        if function is None:
            return None
        for run in reversed(self._running):
            for name, previous in run.previous_objects.items():
                if self._shell.user_ns.get(name) is function and function is not previous:
                    return name, run
        return next(((name, run) for name, (run, defined) in self.sources.items() if defined is function), None)

    def _mismatch(self, function: Any) -> Mismatch | None:
        source = self._source(function)
        if source is None:
            return None
        name, run = source
        last = self.last.get(name, run)
        other_cell = None not in (last.cell_id, run.cell_id) and last.cell_id != run.cell_id
        if last.failed and last is not run and not other_cell and last.code != run.code:
            return Mismatch("failed", name, run.count, last.count)
        return Mismatch("edited", name, run.count) if self._is_edited(name, run) else None

    def _is_edited(self, name: str, run: CellRun) -> bool:
        """Say whether the notebook was saved since, with another text of the function in this cell."""
        notebook = _notebook()
        if run.cell_id is None or run.saved is None or notebook is None:
            return False
        stamp = _stamp(notebook)
        if stamp is None or stamp == run.saved:
            return False
        texts = {cell_id: defined.get(name) for cell_id, defined in _saved_definitions(notebook, stamp).items()}
        on_page = texts.get(run.cell_id)
        return on_page is not None and run.texts[name] not in texts.values()

    def _reachable(self, function: Any) -> Iterator[Any]:
        """The function, and those of the notebook that it calls, directly or through others."""
        pending, seen = [function], set()
        while pending:
            current = pending.pop()
            if id(current) in seen:
                continue
            seen.add(id(current))
            yield current
            plain = inspect.unwrap(current) if callable(current) else None
            if self._source(current) is not None and isinstance(plain, FunctionType):
                called = (plain.__globals__.get(name) for name in _global_names(plain.__code__))
                pending += [value for value in called if isinstance(value, FunctionType)]


def defined_in(cell: str) -> dict[str, str]:
    """The functions at the top level of a cell, each as Python sees it: without comments, layout and docstring.

    Where the cell cannot be read, the text is the cell; a magic that takes it as no code of this notebook has none.
    """
    cell = RUN_HERE.sub("", cell.lstrip(), count=1)
    if cell.startswith("%%"):
        return {}
    for text in (cell, _without_magics(cell)):
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            return {node.name: _normal(node) for node in ast.parse(text).body if isinstance(node, _DEFINITIONS)}
    return dict.fromkeys(DEFINITION.findall(cell), cell)


def _code(cell: str) -> str:
    try:
        return ast.unparse(ast.parse(cell))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return cell


def _without_magics(cell: str) -> str:
    """The cell without the lines that are for IPython: `%matplotlib inline`, `!ls`, `?print`."""
    return re.sub(r"^(\s*)[%!?].*$", r"\1pass", cell, flags=re.MULTILINE)


def _normal(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    if ast.get_docstring(node, clean=False) is not None:
        node.body[:1] = [] if len(node.body) > 1 else [ast.Pass()]
    return ast.unparse(node)


def _text_of(function: Any) -> str | None:
    try:
        (text,) = defined_in(textwrap.dedent(inspect.getsource(function))).values()
    except (OSError, TypeError, ValueError):
        return None
    return text


def unwrapped(function: Any) -> Any:
    """The function behind its decorators, which has the namespace that it reads; what cannot be called as it is."""
    return inspect.unwrap(function) if callable(function) else function


def global_names_of(function: Any) -> set[str]:
    """The global names that a function reads, also by way of others that stand in the same namespace."""
    names: set[str] = set()
    pending = [unwrapped(function)]
    namespace = getattr(pending[0], "__globals__", {})
    while pending:
        current = pending.pop()
        if isinstance(current, FunctionType) and current.__globals__ is namespace:
            new = _global_names(current.__code__) - names
            names |= new
            pending += [namespace[name] for name in new if name in namespace]
    return names


def _global_names(code: CodeType) -> set[str]:
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    return names.union(*(_global_names(part) for part in code.co_consts if isinstance(part, CodeType)))


def _notebook() -> Path | None:
    """The notebook of this kernel, as the server of JupyterLab says; None elsewhere."""
    name = os.environ.get("JPY_SESSION_NAME", "")
    return Path(name) if name.endswith(".ipynb") else None


def _stamp(path: Path | None) -> tuple | None:
    """Return time, size and number of a file, which a save changes; None where there is no file."""
    try:
        status = path.stat() if path is not None else None
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino) if status is not None else None


@lru_cache(maxsize=1)
def _saved_definitions(path: Path, stamp: tuple) -> dict[str, dict[str, str]]:
    """Return what each cell of code defines, by its id, as it was last saved; empty where the file cannot be read."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        return {cell.get("id", str(index)): defined_in("".join(cell["source"])) for index, cell in enumerate(code)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


CELLS = Cells()
