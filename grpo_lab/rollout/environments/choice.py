"""The choice of an environment: by the arguments of `train`, by the options of a command, or by a task."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from grpo_lab.base.checks import InputError
from grpo_lab.rollout.environments.environment import Environment
from grpo_lab.rollout.environments.text_environment import TextEnvironment
from grpo_lab.rollout.environments.tools import ToolEnvironment
from grpo_lab.tasks import Task


def pick_environment(
    environment: Environment | None,
    tools: list[Callable] | None,
    environment_factory: Callable | None,
    *,
    max_tool_calling_iterations: int | None,
    tool_timeout: float,
) -> Environment | None:
    """Return the environment that the arguments of `train` choose; None without an environment.

    Args:
        environment: An environment object; excludes the next two arguments.
        tools: Functions for a `ToolEnvironment`.
        environment_factory: A class, or a function without arguments, that makes the environments of a
            `ToolEnvironment`.
        max_tool_calling_iterations: Maximum number of turns after which the environment replies; one more turn may
            follow. None leaves the limit to the environment.
        tool_timeout: Limit of a call of a tool in seconds.

    Raises:
        InputError: if an environment object is given together with tools or a factory, or a limit of turns without an
            environment.
    """
    limit = max_tool_calling_iterations
    if tools or environment_factory is not None:
        if environment is not None:
            name = "tools" if tools else "environment_factory"
            raise InputError("environment", environment, f"expected either it or {name}", found="is given, too")
        return ToolEnvironment(tools, environment_factory, limit, tool_timeout)
    if limit is not None:
        if environment is None:
            raise InputError("max_tool_calling_iterations", limit, "leave it out: there are no tools")
        if isinstance(environment, TextEnvironment):
            return replace(environment, max_turns=limit + 1)
    return environment


def named_or_task_environment(environment_arguments: dict[str, Any], task: Task | None) -> Environment | None:
    """Return the environment of the named tools and the named class, or else that of the task; None without any.

    environment_arguments: The arguments that `load_environment_arguments` returns; empty if nothing was named.
    """
    if environment_arguments:
        return ToolEnvironment(**environment_arguments)
    return None if task is None else task_environment(task)


def task_environment(task: Task) -> TextEnvironment | None:
    """Return the environment of a task; None if the task has no function that replies."""
    return None if task.respond is None else TextEnvironment(task.respond, task.stop_strings)
