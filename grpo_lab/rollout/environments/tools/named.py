"""Tools and environments by name, for the commands: `--tools my_tools.py:search`, `--environment my_world.py:World`.

Two tools come with the package: `python`, which runs a program, and `sqlite:FILE`, which queries a database.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_lab.base.checks import InputError, InputFileError, InputPackageError, InputTypeError
from grpo_lab.base.own_code import import_file
from grpo_lab.sandbox import run_python, sqlite_tool
from grpo_lab.sandbox.python import PYTHON_TOOL, check_sandbox

SQLITE = "sqlite:"


def load_tools(names: list[str] | None) -> list[Callable]:
    """Load tools by name; a file is imported, which runs its code.

    names: FILE:function, "python" or sqlite:FILE. None: no tools.
    """
    return [_load_tool(name) for name in names or []]


def load_environment_class(name: str | None) -> type | None:
    """Load an environment class by its name FILE:Class; the file is imported, which runs its code. None for None."""
    if name is None:
        return None
    definition = _load_definition("environment", name)
    if not inspect.isclass(definition):
        raise InputTypeError("environment", name, "expected the name of a class")
    return definition


def _load_tool(name: str) -> Callable:
    if name == PYTHON_TOOL:
        check_sandbox("tools", run_python)
        return run_python
    if name.startswith(SQLITE):
        return sqlite_tool(name.removeprefix(SQLITE))
    return _load_definition("tools", name)


def _load_definition(option: str, name: str) -> Any:
    path, _, attribute = name.rpartition(":")
    if not path.endswith(".py") or not attribute.isidentifier():
        example = "my_world.py:World" if option == "environment" else "my_tools.py:search"
        alternatives = "" if option == "environment" else f"; or {PYTHON_TOOL}, or {SQLITE}FILE"
        raise InputError(option, name, f"expected a file and what is in it, such as {example}{alternatives}")
    file = Path(path).expanduser()
    if not file.is_file():
        raise InputFileError(option, name, f"there is no such file in {Path.cwd()}")
    try:
        # The prefix keeps a file such as json.py from replacing a module of that name.
        module = import_file(file.resolve(), f"own_{file.stem}")
    except (Exception, SystemExit) as error:  # the code of a file may raise anything
        problem = f"is {name!r}, but {file.name} cannot be imported: {type(error).__name__}: {error}"
        raise InputPackageError(option, name, found=problem) from error
    if not callable(definition := getattr(module, attribute, None)):
        raise InputError(option, name, f"expected something that {file.name} defines", found=f"is {name!r}")
    return definition
