"""Find out whether a function in memory is the one that the student sees on the page of the notebook.

Two things can make them differ:

- A cell failed before it defined its function, so an older function is still in memory. IPython reports each run.
- A cell was changed and not run again. This is seen once the notebook is saved: the file has then been written since
  the run, and has another text for the cell with this id.

A change that was neither run nor saved cannot be seen. Frontends without cell ids (VS Code, a terminal) are not
compared with a file.
"""

import ast
import dis
import inspect
import json
import os
import re
import sys
import textwrap
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from grpo_lab.base.language import Phrase, fill
from grpo_lab.base.user_code import Function, functions_of_cell, parse_cell, python_of_cell

DEFINITION = re.compile(r"^(?:async\s+)?def\s+(\w+)", re.MULTILINE)
FAILED = (
    "{name} in memory is not the function of your page: its cell was run again{failed_run} and failed, so the one in "
    "memory is older{run}. Run the cell until it raises nothing, then check again."
)
EDITED = (
    "{name} in memory is not the function of your page: the cell was changed after it ran{run}, as the saved notebook "
    "shows. Run the cell, then check again."
)


@dataclass
class CellRun:
    """A run of a cell.

    Attributes:
        cell_id: The id of the cell; None from a frontend without cell ids.
        texts: The normalised text of each function at the top level of the cell, by name.
        code: The code of the whole cell, without comments and layout.
        previous_objects: The objects that had the names of these functions before the run.
        file_state: The state of the notebook's file when the run began; None without a file.
        count: The number that the notebook shows, such as 7 for In [7]; None during the run.
        has_failed: Whether the run ended with an exception.
    """

    cell_id: str | None
    texts: dict[str, str]
    code: str
    previous_objects: dict[str, Any]
    file_state: tuple | None
    count: int | None = None
    has_failed: bool = False


class CellHistory:
    """A record of the runs of cells, by the names of the functions that the cells define.

    Attributes:
        last_runs: The last run of a cell that contains the function, by the function's name.
        definitions: The run that defined the function in memory, and the function itself, by its name.
    """

    def __init__(self) -> None:
        self._shell: Any = None
        self.forget()

    def forget(self) -> None:
        self.last_runs: dict[str, CellRun] = {}
        self.definitions: dict[str, tuple[CellRun, Any]] = {}
        self._running: list[CellRun] = []

    def watch(self) -> None:
        """Record the runs of the current IPython shell from now on. Outside IPython, this does nothing."""
        ipython = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython is not None else None
        if shell is None or shell is self._shell:
            return
        self._shell = shell
        self.forget()
        shell.events.register("pre_run_cell", self._begin)
        shell.events.register("post_run_cell", self._end)

    def mismatch(self, function: Any) -> str:
        """Return a sentence on the first mismatch with the page, of the function or of one of the notebook's it calls.

        It is "" if all of them are the ones on the page.
        """
        namespace = namespace_of(function)
        called = [namespace.get(name) for name in sorted(global_names_of(function))]
        return next(filter(None, map(self._mismatch, [function, *called])), "")

    def judged_cell(self, function: Any) -> str:
        """Return a sentence on the cell that defined the function, for a verdict; "" if no cell did."""
        definition = self._definition(function)
        if definition is None:
            return ""
        name, run = definition
        if run.count is None:
            return "judged: the function of this cell"
        last_run = self.last_runs.get(name, run)
        if last_run.has_failed and last_run is not run:
            sentence = "judged: the cell that ran as In [{0}]; another one with this name failed (In [{1}])"
            return fill(sentence, run.count, last_run.count)
        return fill("judged: the cell that ran as In [{0}]", run.count)

    def object_named(self, name: str) -> Any:
        """Return the object in memory that has this name; None if there is none, and outside IPython."""
        return self._shell.user_ns.get(name) if self._shell is not None else None

    def text(self, name: str) -> str | None:
        """Return the normalised text of the function in memory that has this name; None if it cannot be read."""
        function = self.object_named(name)
        definition = self._definition(function)
        if definition is None:
            return _text_of(function)
        name_in_cell, run = definition
        return run.texts[name_in_cell]

    def _begin(self, info: Any) -> None:
        texts = function_texts(info.raw_cell or "")
        previous_objects = {name: self._shell.user_ns.get(name) for name in texts}
        code, file_state = (_normalised_code(info.raw_cell), _file_state(_notebook())) if texts else ("", None)
        run = CellRun(getattr(info, "cell_id", None), texts, code, previous_objects, file_state)
        self._running.append(run)
        self.last_runs |= dict.fromkeys(texts, run)

    def _end(self, result: Any) -> None:
        if not self._running:  # this cell called `watch`, so its beginning was not recorded
            return
        run = self._running.pop()
        if result is None:  # IPython itself failed
            return
        run.count, run.has_failed = result.execution_count, not result.success
        for name in run.texts:
            function = self._shell.user_ns.get(name)
            if function is not None and function is not run.previous_objects[name]:
                self.definitions[name] = run, function
        run.previous_objects = {}

    def _definition(self, function: Any) -> tuple[str, CellRun] | None:
        """Return the name under which a cell defined this function object, and the run; None if no cell did."""
        if function is None:
            return None
        for run in reversed(self._running):
            for name, previous in run.previous_objects.items():
                if self._shell.user_ns.get(name) is function and function is not previous:
                    return name, run
        return next(((name, run) for name, (run, defined) in self.definitions.items() if defined is function), None)

    def _mismatch(self, function: Any) -> str:
        definition = self._definition(function)
        if definition is None:
            return ""
        name, run = definition
        last_run = self.last_runs.get(name, run)
        has_failed_later = last_run.has_failed and last_run is not run
        is_other_cell = None not in (last_run.cell_id, run.cell_id) and last_run.cell_id != run.cell_id
        if has_failed_later and not is_other_cell and last_run.code != run.code:
            return fill(FAILED, name=f"`{name}`", run=_in_words(run.count), failed_run=_in_words(last_run.count))
        return fill(EDITED, name=f"`{name}`", run=_in_words(run.count)) if self._is_edited(name, run) else ""

    def _is_edited(self, name: str, run: CellRun) -> bool:
        """Return True if the notebook was saved after the run, and the saved cell has another text of the function.

        A function that has moved to another cell with the same text is not edited.
        """
        notebook = _notebook()
        if run.cell_id is None or run.file_state is None or notebook is None:
            return False
        file_state = _file_state(notebook)
        if file_state is None or file_state == run.file_state:
            return False
        texts = {cell_id: defined.get(name) for cell_id, defined in _saved_definitions(notebook, file_state).items()}
        saved_text = texts.get(run.cell_id)
        return saved_text is not None and run.texts[name] not in texts.values()


def _in_words(count: int | None) -> str:
    """Return the number of a run as the end of a clause, such as " (In [7])"; "" if it has none."""
    return "" if count is None else Phrase(" ", fill("(In [{0}])", count))


def function_texts(cell: str) -> dict[str, str]:
    """Return the text of each function at the top level of a cell, by name, without comments, layout and docstring.

    If the cell cannot be parsed, the text of each function is the whole cell. A cell that a magic does not run in the
    notebook's namespace defines no function.
    """
    if parse_cell(cell) is None:
        return dict.fromkeys(DEFINITION.findall(python_of_cell(cell) or ""), cell)
    return {function.name: _normalised_function(function) for function in functions_of_cell(cell)}


def _normalised_code(cell: str) -> str:
    tree = parse_cell(cell)
    return cell if tree is None else ast.unparse(tree)


def _normalised_function(node: Function) -> str:
    if ast.get_docstring(node, clean=False) is not None:
        node.body[:1] = [] if len(node.body) > 1 else [ast.Pass()]
    return ast.unparse(node)


def _text_of(function: Any) -> str | None:
    try:
        (text,) = function_texts(textwrap.dedent(inspect.getsource(function))).values()
    except (OSError, TypeError, ValueError):
        return None
    return text


def is_from_library(value: Any) -> bool:
    """Return True for a function of grpo_lab.

    This uses `type` and not `isinstance`, which would run code of a student's object.
    """
    module = value.__module__ if type(value) is FunctionType else None
    return type(module) is str and module.partition(".")[0] == "grpo_lab"


def namespace_of(function: Any) -> dict[str, Any]:
    """Return the global names of a function below its decorators; an empty dictionary for an object without any."""
    namespace = getattr(inspect.unwrap(function), "__globals__", None) if callable(function) else None
    return namespace if isinstance(namespace, dict) else {}


def global_names_of(function: Any) -> set[str]:
    """Return the global names that a function reads, itself or through functions of the same namespace."""
    names: set[str] = set()
    namespace = namespace_of(function)
    pending = [function]
    while pending:
        current = pending.pop()
        if isinstance(current, FunctionType) and (undecorated := inspect.unwrap(current)).__globals__ is namespace:
            new = _global_names(undecorated.__code__) - names
            names |= new
            pending += [namespace[name] for name in new if name in namespace]
    return names


def _global_names(code: CodeType) -> set[str]:
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    return names.union(*(_global_names(part) for part in code.co_consts if isinstance(part, CodeType)))


def _notebook() -> Path | None:
    """Return the path of this kernel's notebook, which JupyterLab's server sets; None for other frontends."""
    name = os.environ.get("JPY_SESSION_NAME", "")
    return Path(name) if name.endswith(".ipynb") else None


def _file_state(path: Path | None) -> tuple | None:
    """Return the time, size and inode number of a file, which change when it is saved; None without a file."""
    try:
        status = path.stat() if path is not None else None
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino) if status is not None else None


@lru_cache(maxsize=1)
def _saved_definitions(path: Path, file_state: tuple) -> dict[str, dict[str, str]]:
    """Return the functions in each code cell of the saved notebook, by cell id; empty if the file cannot be read.

    file_state: The state of the file, which makes the cache read a changed file again.
    """
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        return {cell.get("id", str(index)): function_texts("".join(cell["source"])) for index, cell in enumerate(code)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


CELL_HISTORY = CellHistory()
