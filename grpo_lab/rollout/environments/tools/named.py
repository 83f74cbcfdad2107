"""Tools and environments by name, for the commands: `--tools my_tools.py:search`, `--environment my_world.py:World`.

Two tools come with the package: `python`, which runs a program, and `sqlite:FILE`, which queries a database.
"""

import inspect
from collections.abc import Callable

from grpo_lab.base.checks import InputTypeError
from grpo_lab.base.user_code import import_user_object
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
    definition = import_user_object("environment", name, "my_world:World", files_only=True)
    if not inspect.isclass(definition):
        raise InputTypeError("environment", name, "expected the name of a class")
    return definition


def _load_tool(name: str) -> Callable:
    if name == PYTHON_TOOL:
        check_sandbox("tools", run_python)
        return run_python
    if name.startswith(SQLITE):
        return sqlite_tool(name.removeprefix(SQLITE))
    tool = import_user_object(
        "tools", name, "my_tools:search", files_only=True, alternatives=f"; or {PYTHON_TOOL}, or {SQLITE}FILE"
    )
    if not callable(tool):
        problem = f"has {name!r}, which is {type(tool).__name__} {tool!r:.80}"
        raise InputTypeError("tools", name, "expected a function", problem=problem)
    return tool
