"""Tools and environments by name, for the commands: `--tools my_tools.py:search`, `--environment my_world.py:World`.

Two tools come with the package: `python`, which runs a program, and `sqlite:FILE`, which queries a database.
"""

import inspect
from collections.abc import Callable
from typing import Any

from grpo_lab.base.checks import InputTypeError
from grpo_lab.base.own_code import load
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
        keywords["environment_factory"] = load("environment", environment, "my_world:World", files_only=True)
        if not inspect.isclass(keywords["environment_factory"]):
            raise InputTypeError("environment", environment, "expected the name of a class")
    return keywords


def _load_tool(name: str) -> Callable:
    if name == PYTHON_TOOL:
        check_sandbox("tools", run_python)
        return run_python
    if name.startswith(SQLITE):
        return sqlite_tool(name.removeprefix(SQLITE))
    tool = load("tools", name, "my_tools:search", files_only=True, alternatives=f"; or {PYTHON_TOOL}, or {SQLITE}FILE")
    if not callable(tool):
        problem = f"has {name!r}, which is {type(tool).__name__} {tool!r:.80}"
        raise InputTypeError("tools", name, "expected a function", found=problem)
    return tool
