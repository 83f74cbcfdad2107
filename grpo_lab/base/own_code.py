"""Loading the user's own code by a name that was typed, FILE:function or module:function. Loading runs the file."""

import contextlib
import importlib
import importlib.util
import inspect
import operator
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from grpo_lab.base.checks import InputError, InputFileError, InputPackageError, InputTypeError

_own_modules: dict[str, ModuleType] = {}  # the modules that `load` imported from files, by their names


def load(option: str, name: str, example: str) -> Any:
    """Import the function, or another object, with a name such as "my_rewards.py:brief" or "my_rewards:brief".

    A module is looked up in the current folder first, then among the installed ones. The object is not checked; a
    caller that needs a function calls `check_function`.

    Args:
        option: The option that the name was given for, such as "reward_funcs", for error messages.
        name: FILE:function or module:function.
        example: A valid module:function for this option, for error messages.

    Raises:
        InputError: if the name has another form, or the file or the function does not exist or cannot be imported.
    """
    module_name, _, attribute = name.rpartition(":")
    is_file = module_name.endswith(".py")
    parts = [*([] if is_file else module_name.split(".")), *attribute.split(".")]
    if not all(part.isidentifier() for part in parts):
        file, _, function = example.partition(":")
        expected = f"expected module:function, such as {example}, or FILE:function, such as {file}.py:{function}"
        raise InputError(option, name, expected, found=f"has {name!r}")
    file_path = Path(module_name).expanduser().absolute()
    folder = file_path.parent if is_file else Path.cwd()
    if is_file and not file_path.is_file():
        raise InputFileError(option, name, f"there is no such file in {folder}", found=f"has {name!r}")
    try:
        with _first_on_path(folder):
            module = _import_checked(option, file_path) if is_file else importlib.import_module(module_name)
            return operator.attrgetter(attribute)(module)
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # the user's file may raise any exception
        problem = f"has {name!r}, but it cannot be imported from {folder}: {type(error).__name__}: {error}"
        raise InputPackageError(option, name, found=problem) from error


def import_file(file: Path, module_name: str) -> ModuleType:
    """Import a file as a module with a name of the caller's choice, once. The file can import others of its folder.

    file: An absolute path.
    module_name: The key in `sys.modules`, by which others find the source of a function of the file. A module from
        another file that has this name is replaced.
    """
    loaded = sys.modules.get(module_name)
    if loaded is not None and _file_of(loaded) == file:
        return loaded
    spec = importlib.util.spec_from_file_location(module_name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        with _first_on_path(file.parent):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def check_function(option: str, name: str, function: Any) -> None:
    """Raise InputTypeError unless `function` can be called and is not a class."""
    if inspect.isclass(function) or not callable(function):
        text = repr(function)
        value = f"{type(function).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
        problem = f"has {name!r}, which is {'a class' if inspect.isclass(function) else value}"
        raise InputTypeError(option, name, "expected a function", found=problem)


def location_in_own_code(error: BaseException) -> str:
    """Return the last line of the user's code in an error's traceback, as " in my_rewards.py, line 7", or ""."""
    library_folders = (Path(__file__).parents[1], Path(sysconfig.get_path("stdlib")))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        is_library = "site-packages" in file.parts or frame.filename.startswith("<frozen")
        if not is_library and not any(file.is_relative_to(folder) for folder in library_folders):
            return f" in {file.name}, line {frame.lineno}"
    return ""


def _import_checked(option: str, file: Path) -> ModuleType:
    """Import a file as a module with the file's name; raise InputError if another module has this name."""
    name = file.stem
    loaded = sys.modules.get(name)
    is_other_module = loaded is not None and _file_of(loaded) != file
    if is_other_module and loaded is not _own_modules.get(name):
        expected = "expected another name for the file: a module with this one is in use"
        raise InputError(option, str(file), expected, found=f"names the file {file.name}")
    module = import_file(file, name)
    if module is not loaded:
        _own_modules[name] = module
    return module


def _file_of(module: ModuleType) -> Path:
    return Path(getattr(module, "__file__", None) or "")


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
