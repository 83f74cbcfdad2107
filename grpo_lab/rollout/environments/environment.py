"""The interface of an environment to a run, and the choice of one by the arguments of `train`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

from grpo_lab.base.checks import InputError
from grpo_lab.rollout.environments.text_environment import TextEnvironment
from grpo_lab.rollout.environments.tools import ToolEnvironment
from grpo_lab.rollout.rollout import Rollout
from grpo_lab.tasks import Rows


@runtime_checkable
class Environment(Protocol):
    """The interface of an environment to `train` and `collect`; `TextEnvironment` and `ToolEnvironment` have it.

    One of your own may leave out an attribute that begins with `has_`: `abilities` counts it as False.
    """

    @property
    def has_instances(self) -> bool:
        """True if each episode has an object of its own, which reward functions get among `environments`.

        Then `sample(..., by_turn=True)` asks it for its reward and its state after every turn, where it has them.
        """
        ...

    @property
    def has_reward(self) -> bool:
        """True if these objects have `get_reward`."""
        ...

    @property
    def has_state(self) -> bool:
        """True if these objects have `get_state`."""
        ...

    def sample(
        self, model, tokenizer, rows: list[dict], num_generations: int, max_completion_length: int, **sampling: Any
    ) -> Rollout:
        """Sample G episodes of each row of the data."""
        ...

    def check(self, model, tokenizer, rows: Rows, max_completion_length: int, name: str = "dataset") -> None:
        """Raise InputError for the first row that no episode can begin with."""
        ...

    @property
    def ingredients(self) -> tuple[list[Callable], dict]:
        """The code that it is made of, and its settings: what a resumed run compares."""
        ...


class Abilities(NamedTuple):
    """The abilities of an environment: its attributes `has_instances`, `has_reward` and `has_state`."""

    has_instances: bool
    has_reward: bool
    has_state: bool


def abilities(environment: Environment | None) -> Abilities:
    """The abilities that an environment states; without an environment there are none."""
    return Abilities(
        has_instances=getattr(environment, "has_instances", False),
        has_reward=getattr(environment, "has_reward", False),
        has_state=getattr(environment, "has_state", False),
    )


def pick_environment(
    config, environment=None, tools: list[Callable] | None = None, environment_factory: Callable | None = None
) -> TextEnvironment | ToolEnvironment | None:
    """Return the environment that the arguments of `train` and the config name; None where the policy writes alone."""
    limit = config.max_tool_calling_iterations
    if tools or environment_factory is not None:
        if environment is not None:
            name = "tools" if tools else "environment_factory"
            raise InputError("environment", environment, f"expected either it or {name}", found="is given, too")
        return ToolEnvironment(tools, environment_factory, limit, config.tool_timeout)
    if limit is not None:
        if environment is None:
            raise InputError("max_tool_calling_iterations", limit, "leave it out: there are no tools")
        if isinstance(environment, TextEnvironment):
            return replace(environment, max_turns=limit + 1)
    return environment
