"""The interface of environments, and sampling with or without one."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from grpo_lab.base.checks import InputError
from grpo_lab.rollout.rollout import Rollout
from grpo_lab.rollout.sample import sample_completions
from grpo_lab.tasks import Rows


class Environment:
    """Base class of the environments for `train` and `collect`, such as `TextEnvironment` and `ToolEnvironment`.

    A class of the user's own need not inherit from it: `as_environment` wraps an object that has the methods `sample`
    and `check` and the property `functions_and_settings`. An attribute that the object lacks has the value below.

    Attributes:
        has_instances: True if each episode has an environment object of its own, which reward functions get in
            `environments`.
        has_reward: True if the environment objects have a method `get_reward`.
        has_state: True if the environment objects have a method `get_state`.
        schemas: JSON schemas of the tools, which the chat template writes into each prompt. None: the environment
            replies in plain text.
    """

    has_instances: bool = False
    has_reward: bool = False
    has_state: bool = False
    schemas: list[dict] | None = None

    def with_max_turns(self, max_turns: int) -> "Environment":
        """Return the environment with this maximum number of turns; a subclass without such a limit refuses it."""
        expected = "leave it out: this environment has no limit of turns that could be set"
        raise InputError("max_tool_calling_iterations", max_turns - 1, expected)

    def sample(
        self,
        model,
        tokenizer,
        rows: list[dict],
        num_generations: int,
        max_completion_length: int,
        *,
        record_turns: bool = False,
        **sampling: Any,
    ) -> Rollout:
        """Sample G episodes of each row of the data.

        Args:
            model, tokenizer: The policy and its tokenizer.
            rows: Rows of the data, P of them.
            num_generations: G, number of episodes of each row.
            max_completion_length: Maximum number of tokens of an episode, including the replies.
            record_turns: True records after every turn the reward so far and the state of each environment object, if
                it has them. A wrapped object without `has_instances` does not get this argument.
            sampling: The keyword arguments of `sample_completions`, from `temperature` on.
        """
        raise NotImplementedError

    def check(self, model, tokenizer, rows: Rows, max_completion_length: int, name: str = "dataset") -> None:
        """Raise InputError for the first row of the data that cannot begin an episode.

        Args:
            model: The policy, of which only the attribute `config` is read, since a command checks before it loads the
                weights.
            tokenizer: The tokenizer of the policy.
            rows: Rows of the data.
            max_completion_length: Maximum number of tokens of an episode, including the replies.
            name: The name of the data in errors.
        """
        raise NotImplementedError

    @property
    def functions_and_settings(self) -> tuple[list[Callable], dict]:
        """The functions and the settings of the environment, which a resumed run compares with those it began with."""
        raise NotImplementedError


@runtime_checkable
class EnvironmentLike(Protocol):
    """The least that an environment of the user's own must have; every `Environment` has it, too."""

    def sample(
        self, model, tokenizer, rows: list[dict], num_generations: int, max_completion_length: int, **sampling: Any
    ) -> Rollout:
        """Sample G episodes of each row of the data, as `Environment.sample` describes."""
        ...

    def check(self, model, tokenizer, rows: Rows, max_completion_length: int, name: str = "dataset") -> None:
        """Raise InputError for the first row of the data that cannot begin an episode."""
        ...

    @property
    def functions_and_settings(self) -> tuple[list[Callable], dict]:
        """The functions and the settings, which a resumed run compares with those it began with."""
        ...


class WrappedEnvironment(Environment):
    """An environment of the user's own that does not inherit from `Environment`.

    wrapped: The user's object; each attribute of `Environment` that it lacks has its default.
    """

    def __init__(self, wrapped: EnvironmentLike):
        self.wrapped = wrapped
        self.has_instances = getattr(wrapped, "has_instances", Environment.has_instances)
        self.has_reward = getattr(wrapped, "has_reward", Environment.has_reward)
        self.has_state = getattr(wrapped, "has_state", Environment.has_state)
        self.schemas = getattr(wrapped, "schemas", Environment.schemas)

    def with_max_turns(self, max_turns: int) -> Environment:
        """Return the environment with this maximum number of turns, if the user's object has this method."""
        if hasattr(self.wrapped, "with_max_turns"):
            return WrappedEnvironment(self.wrapped.with_max_turns(max_turns))
        return super().with_max_turns(max_turns)

    def sample(
        self,
        model,
        tokenizer,
        rows: list[dict],
        num_generations: int,
        max_completion_length: int,
        *,
        record_turns: bool = False,
        **sampling: Any,
    ) -> Rollout:
        """Sample G episodes of each row of the data, as `Environment.sample` describes."""
        # An object without instances may lack the argument `record_turns`.
        keywords = {"record_turns": True} if record_turns and self.has_instances else {}
        return self.wrapped.sample(
            model, tokenizer, rows, num_generations, max_completion_length, **keywords, **sampling
        )  # fmt: skip

    def check(self, model, tokenizer, rows: Rows, max_completion_length: int, name: str = "dataset") -> None:
        """Raise InputError for the first row of the data that cannot begin an episode."""
        self.wrapped.check(model, tokenizer, rows, max_completion_length, name)

    @property
    def functions_and_settings(self) -> tuple[list[Callable], dict]:
        """The functions and the settings of the user's object."""
        return self.wrapped.functions_and_settings


def as_environment(environment: EnvironmentLike | None) -> Environment | None:
    """Wrap an object that does not inherit from `Environment`; return any other environment, or None, unchanged."""
    if environment is None or isinstance(environment, Environment):
        return environment
    return WrappedEnvironment(environment)


def sample_rows(
    model,
    tokenizer,
    rows: list[dict],
    num_generations: int,
    max_completion_length: int,
    environment: EnvironmentLike | None = None,
    *,
    record_turns: bool = False,
    **sampling: Any,
) -> Rollout:
    """Sample G completions of each row of the data, or G episodes if there is an environment.

    Args:
        model, tokenizer: The policy and its tokenizer.
        rows: Rows of the data, P of them, each with a "prompt".
        num_generations: G, number of completions or episodes of each row.
        max_completion_length: Maximum number of tokens of a completion, or of an episode including the replies.
        environment: The environment that replies to the policy. None: the policy writes each completion alone.
        record_turns: True records after every turn the reward so far and the state of each environment object, if each
            episode has such an object.
        sampling: The keyword arguments of `sample_completions`, from `temperature` on.
    """
    environment = as_environment(environment)
    if environment is None:
        prompts = [row["prompt"] for row in rows]
        return sample_completions(model, tokenizer, prompts, num_generations, max_completion_length, **sampling)
    return environment.sample(
        model, tokenizer, rows, num_generations, max_completion_length, record_turns=record_turns, **sampling
    )  # fmt: skip
