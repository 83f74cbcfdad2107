"""The environment of a run, made from the arguments of `train` or from the task and the options of a command.

The commands take tools and environments by name: `--tools my_tools.py:search`, `--environment my_world.py:World`. Two
tools come with the package: `python`, which runs a program, and `sqlite:FILE`, which queries a database.
"""

import inspect
from collections.abc import Callable

from grpo_lab.base.checks import InputError, InputTypeError
from grpo_lab.base.user_code import import_user_object
from grpo_lab.rollout.environments.environment import Environment, check_is_environment
from grpo_lab.rollout.environments.text_environment import TextEnvironment
from grpo_lab.rollout.environments.tools import TOOL_TIMEOUT, ToolEnvironment
from grpo_lab.sandbox import run_python, sqlite_tool
from grpo_lab.sandbox.python import PYTHON_TOOL, check_sandbox
from grpo_lab.tasks import Task

SQLITE = "sqlite:"


def make_environment(
    task: Task | None = None,
    *,
    tools: list[Callable] | None = None,
    environment_factory: Callable | None = None,
    environment: Environment | None = None,
    max_tool_calling_iterations: int | None = None,
    tool_timeout: float | None = None,
) -> Environment | None:
    """Make the environment of a run, an evaluation or a chat; None if nothing replies to the policy.

    Args:
        task: The task, which has an environment if it has a function that replies.
        tools: Functions for a `ToolEnvironment`.
        environment_factory: A class, or a function without arguments, that makes the environments of a
            `ToolEnvironment`. It is called once here.
        environment: An environment object, such as a `TextEnvironment`, or one of the user's own `Environment`.
        max_tool_calling_iterations: Maximum number of turns after which the environment replies; one more turn may
            follow. None leaves the limit to the environment.
        tool_timeout: Limit of a call of a tool in seconds. None leaves the limit to the environment. A run passes
            `GRPOConfig.tool_timeout`.

    Raises:
        InputError: if there are two environments: of the task, `environment`, or one of tools or a factory; if
            `environment` is no `Environment`; or for a limit that no environment reads.
    """
    check_is_environment(environment)
    limit = max_tool_calling_iterations
    if task is not None and task.respond is not None:
        # The option of the commands for `environment_factory` is --environment.
        for name, value in (
            ("tools", tools or None), ("environment", environment_factory), ("environment", environment)
        ):  # fmt: skip
            if value is not None:
                problem = "is given for a task that has an environment of its own"
                raise InputError(name, value, "leave it out, or take another task", problem=problem)
        environment = TextEnvironment(task.respond, task.stop_strings)
    if tools or environment_factory is not None:
        if environment is not None:
            name = "tools" if tools else "environment_factory"
            raise InputError("environment", environment, f"expected either it or {name}", problem="is given, too")
        timeout = TOOL_TIMEOUT if tool_timeout is None else tool_timeout
        return ToolEnvironment(tools, environment_factory, limit, timeout)
    if limit is not None:
        if environment is None:
            raise InputError("max_tool_calling_iterations", limit, "leave it out: there are no tools")
        environment = environment.with_max_tool_calling_iterations(limit)
    if tool_timeout is not None:
        if environment is None:
            raise InputError("tool_timeout", tool_timeout, "leave it out: there are no tools")
        environment = environment.with_tool_timeout(tool_timeout)
    return environment


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
