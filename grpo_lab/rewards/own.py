"""A reward function of one's own, named as module:function."""

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def own_reward(name: str) -> Callable:
    """The function that "module:function" names.

    The module is looked for in the current folder first, then among those that are installed. Importing it runs it.

    Raises:
        ValueError: for a name of another form.
        ImportError: for a module that is not there, or fails; for a function that is not in it.
        TypeError: for what is no function.
    """
    module_name, _, attribute = name.rpartition(":")
    is_file = module_name.endswith(".py")
    if is_file or not all(part.isidentifier() for part in (*module_name.split("."), *attribute.split("."))):
        meant = f", such as {Path(module_name).stem}:{attribute}" if is_file else ""
        raise ValueError(f"reward_funcs has {name!r}; expected module:function{meant}, the module without folders")
    function = _import(module_name, name)
    for part in attribute.split("."):
        if not hasattr(function, part):
            near = difflib.get_close_matches(part, dir(function), n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise ImportError(f"reward_funcs has {name!r}, but there is no {part!r} in {_place(function)}{meant}")
        function = getattr(function, part)
    if inspect.isclass(function) or not callable(function):
        what = "a class" if inspect.isclass(function) else f"of type {type(function).__name__}"
        raise TypeError(f"reward_funcs has {name!r}, which is {what}; expected a function")
    return function


def _import(module_name: str, name: str) -> Any:
    with _current_folder_first():
        try:
            return importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if module_name == missing or module_name.startswith(f"{missing}."):
                where = f"neither in {os.getcwd()} nor installed"
                raise ImportError(f"reward_funcs has {name!r}, but the module {missing!r} is {where}") from error
            raise ImportError(f"reward_funcs has {name!r}, whose module needs {missing!r}, not installed") from error
        except (Exception, SystemExit) as error:  # whatever the lines of somebody's file do
            raise ImportError(
                f"reward_funcs has {name!r}, whose module fails when it is imported: {type(error).__name__}: {error}"
            ) from error


@contextmanager
def _current_folder_first():
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


def _place(module: Any) -> str:
    return getattr(module, "__file__", None) or repr(module)
