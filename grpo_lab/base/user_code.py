"""The user's own code: objects imported by a typed name, and the functions that a notebook's cell defines.

A name is FILE:function or module:function. `import_user_object` loads it, which runs the file.

In a cell some lines are for Jupyter: `%magic`, `!command`, `name?`. `check`, the grading and its sandbox decide by
`functions_of_cell` what a cell defines, so that they cannot disagree. This module imports no torch.
"""

import ast
import contextlib
import importlib
import importlib.util
import inspect
import itertools
import operator
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from grpo_lab.base.checks import InputError, InputFileError, InputPackageError, InputTypeError

Function = ast.FunctionDef | ast.AsyncFunctionDef
# Arguments that the trainer passes to a reward function that has parameters with these names.
TRAINER_ARGUMENTS = ("trainer_state", "log_metric", "log_extra")
# Magics that run their cell in the notebook's namespace. `%%timeit` is none of them: it runs the cell in a function.
_MAGIC_IN_NAMESPACE = re.compile(r"%%(?:time|capture|prun)\b")
# A line for Jupyter; or Python in which no such line begins: a string, a comment, a joined line or a bracket.
_JUPYTER_LINE_OR_PYTHON = re.compile(
    r"""
    # A line that begins with %magic, !command or ?name, or is x = %magic or x = !command; with the lines joined to it.
      ^(?P<indent>[^\S\n]*)
      (?: (?P<target>[^\W\d][\w.,*\[\] \t]*=[ \t]*)(?=[%!]) | (?=[%!?]) )
      (?: \\(?:.|\Z) | [^\\\n] )*
    # A line that ends in ? or ??, such as name?
    | ^(?P<help_indent>[^\S\n]*)[\w.*]+(?:\[[^\]\n]*\][\w.*]*)*\?{1,2}[^\S\n]*$
    # A string in three quotes, a string in one line, a comment, a backslash that joins two lines, a bracket.
    | (?P<quotes>"{3}|'{3})(?:\\.|(?!(?P=quotes))[^\\])*(?:(?P=quotes))?
    | "(?:\\.|[^"\\\n])*"? | '(?:\\.|[^'\\\n])*'?
    | \#[^\n]*
    | \\\n[ \t]*[%!?]?
    | (?P<brackets>[][(){}])
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_module_names: dict[Path, str] = {}  # the name of the module of each file that was imported, by its resolved path


def import_user_object(option: str, name: str, example: str, files_only: bool = False, alternatives: str = "") -> Any:
    """Import the function, or another object, with a name such as "my_rewards.py:brief" or "my_rewards:brief".

    A file is executed once in a process, whichever options name it. A module is looked up in the current folder first,
    then among the installed ones. The object is not checked; a caller that needs a function calls `check_function`.

    Args:
        option: The option that the name was given for, such as "reward_funcs", for error messages.
        name: FILE:function or module:function.
        example: A valid module:function for this option, for error messages.
        files_only: Whether FILE:function alone is allowed.
        alternatives: Other values that the option takes, for error messages.

    Raises:
        InputError: if the name has another form, or the file or the function does not exist or cannot be imported.
    """
    module_name, _, attribute = name.rpartition(":")
    is_file = module_name.endswith(".py")
    parts = [*([] if is_file else module_name.split(".")), *attribute.split(".")]
    if not all(part.isidentifier() for part in parts) or (files_only and not is_file):
        file_example = f"{example.replace(':', '.py:')}{alternatives}"
        expected = f"expected module:function, such as {example}, or FILE:function, such as {file_example}"
        if files_only:
            expected = f"expected FILE:name, such as {file_example}"
        raise InputError(option, name, expected, problem=f"has {name!r}")
    file_path = Path(module_name).expanduser().absolute()
    folder = file_path.parent if is_file else Path.cwd()
    if is_file and not file_path.is_file():
        raise InputFileError(option, name, f"there is no such file in {folder}", problem=f"has {name!r}")
    try:
        if is_file:
            module_name = _import_file(file_path).__name__
        with _first_on_path(folder):
            return operator.attrgetter(attribute)(importlib.import_module(module_name))
    except (Exception, SystemExit) as error:  # the user's file may raise any exception
        problem = f"has {name!r}, but it cannot be imported from {folder}: {type(error).__name__}: {error}"
        raise InputPackageError(option, name, problem=problem) from error


def qualified_name(function: Any) -> str:
    """Return the name of a function or class behind that of its module, such as "my_rewards.brief".

    If the module was imported from a file, its name is that of the file, so that the result does not depend on which
    other modules are imported.
    """
    module_name = function.__module__
    file_name = next((file.stem for file, name in _module_names.items() if name == module_name), module_name)
    return f"{file_name}.{function.__qualname__}"


def check_function(option: str, name: str, function: Any) -> None:
    """Raise InputTypeError unless `function` can be called and is not a class."""
    if inspect.isclass(function) or not callable(function):
        text = repr(function)
        value = f"{type(function).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
        problem = f"has {name!r}, which is {'a class' if inspect.isclass(function) else value}"
        raise InputTypeError(option, name, "expected a function", problem=problem)


def location_in_user_code(error: BaseException) -> str:
    """Return the last line of the user's code in an error's traceback, as " in my_rewards.py, line 7", or ""."""
    library_folders = (Path(__file__).parents[1], Path(sysconfig.get_path("stdlib")))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        is_library = "site-packages" in file.parts or frame.filename.startswith("<frozen")
        if not is_library and not any(file.is_relative_to(folder) for folder in library_folders):
            return f" in {file.name}, line {frame.lineno}"
    return ""


def _import_file(file: Path) -> ModuleType:
    """Import a file as a module, once.

    file: An absolute path. The file is executed under this path, and recognised by the path without symbolic links.
    """
    name = _module_name(file)
    if (loaded := sys.modules.get(name)) is not None:
        return loaded
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # the name of the file ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # inspect and pickle look up the module of a function there
    try:
        with _first_on_path(file.parent):  # so that the file can import others of its folder
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _module_name(file: Path) -> str:
    """Return the name of the module of a file: that of the file, or if another module has it, a longer one.

    So a file such as json.py replaces no module of a library, and files of one name in two folders can both be used.
    """
    file = file.resolve()
    if file not in _module_names or not _is_free(_module_names[file], file):
        numbered = (f"user_{file.stem}_{number}" for number in itertools.count(2))
        candidates = itertools.chain((file.stem, f"user_{file.stem}"), numbered)
        _module_names[file] = next(name for name in candidates if _is_free(name, file))
    return _module_names[file]


def _is_free(name: str, file: Path) -> bool:
    """Return True if no other module has this name, whether imported or still to be imported."""
    if name in sys.modules:
        return _file_of(sys.modules[name]) == file
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    return spec is None or spec.origin is None or Path(spec.origin).resolve() == file  # without origin: a folder


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file).resolve()


@contextlib.contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    """Put the folder first on the import path, inside the `with` block."""
    path_entry = os.fspath(folder)
    sys.path.insert(0, path_entry)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the imported module may already have removed it
            sys.path.remove(path_entry)


def python_of_cell(source: str) -> str | None:
    """Return the Python of a cell, with `pass` for each line that only Jupyter understands.

    `x = !command` and `x = %magic` become `x = None`. Lines keep their numbers. Errors of syntax
    remain. The result is None if a magic in the first line hands the cell to something else than the notebook's
    namespace, as `%%writefile` and `%%timeit` do.
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
    return _without_jupyter_lines(python)


def _without_jupyter_lines(source: str) -> str:
    """Replace the lines for Jupyter outside strings and brackets."""
    depth = 0  # number of open brackets

    def replacement(match: re.Match) -> str:
        nonlocal depth
        indent = match["indent"] if match["indent"] is not None else match["help_indent"]
        if indent is None or depth > 0:
            text = match["brackets"] or (match[0] if indent is not None else "")
            depth += sum(text.count(bracket) for bracket in "([{") - sum(text.count(bracket) for bracket in ")]}")
            return match[0]
        statement = f"{match['target']}None" if match["target"] else "pass"
        return indent + statement + "\n" * match[0].count("\n")

    return _JUPYTER_LINE_OR_PYTHON.sub(replacement, source)


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
