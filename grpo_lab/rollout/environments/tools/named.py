"""Tools and environments by name, for the commands: `--tools my_tools.py:search`, `--environment my_world.py:World`.

Two tools come with the package: `python`, which runs a program, and `sqlite:FILE`, which queries a database.
"""

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_lab.base.checks import InputError, InputFileError, InputPackageError, InputTypeError
from grpo_lab.sandbox import run_python, sqlite_tool
from grpo_lab.sandbox.python import PYTHON_TOOL, check_sandbox

SQLITE = "sqlite:"


def load_environment_arguments(tools: list[str] | None, environment: str | None) -> dict[str, Any]:
    """Load named tools and a named environment class; return them as keyword arguments of `train`.

    A file is imported, which runs its code.

    tools: Names of tools: FILE:function, "python" or sqlite:FILE. None: no tools.
    environment: FILE:Class. None: no environment.
    """
    keywords: dict[str, Any] = {}
    if tools:
        keywords["tools"] = [_load_tool(name) for name in tools]
    if environment is not None:
        keywords["environment_factory"] = _load_definition("environment", environment)
        if not inspect.isclass(keywords["environment_factory"]):
            raise InputTypeError("environment", environment, "expected the name of a class")
    return keywords


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
        module = _import_file(file.resolve())
    except (Exception, SystemExit) as error:  # the code of a file may raise anything
        problem = f"is {name!r}, but {file.name} cannot be imported: {type(error).__name__}: {error}"
        raise InputPackageError(option, name, found=problem) from error
    if not callable(definition := getattr(module, attribute, None)):
        raise InputError(option, name, f"expected something that {file.name} defines", found=f"is {name!r}")
    return definition


def _import_file(file: Path):
    """Import a file as a module, once. The file can import other files of its folder."""
    name = f"own_{file.stem}"
    imported = sys.modules.get(name)
    if imported is not None and Path(imported.__file__ or "") == file:
        return imported
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a resumed run finds the source of a function by its module
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        if str(file.parent) in sys.path:
            sys.path.remove(str(file.parent))
    return module
