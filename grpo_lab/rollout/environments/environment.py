"""The interface of environments, and sampling with or without one."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from grpo_lab.rollout.rollout import Rollout
from grpo_lab.rollout.sample import sample_completions
from grpo_lab.tasks import Rows


@runtime_checkable
class Environment(Protocol):
    """The interface of an environment for `train` and `collect`; `TextEnvironment` and `ToolEnvironment` implement it.

    A class of your own may leave out the attributes that begin with `has_`: a missing one counts as False.
    """

    @property
    def has_instances(self) -> bool:
        """True if each episode has an environment object of its own, which reward functions get in `environments`."""
        ...

    @property
    def has_reward(self) -> bool:
        """True if the environment objects have a method `get_reward`."""
        ...

    @property
    def has_state(self) -> bool:
        """True if the environment objects have a method `get_state`."""
        ...

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
                it has them. Passed only to an environment with `has_instances`.
            sampling: The keyword arguments of `sample_completions`, from `temperature` on.
        """
        ...

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
        ...

    @property
    def functions_and_settings(self) -> tuple[list[Callable], dict]:
        """The functions and the settings of the environment, which a resumed run compares with those it began with."""
        ...


def sample_rows(
    model,
    tokenizer,
    rows: list[dict],
    num_generations: int,
    max_completion_length: int,
    environment: Environment | None = None,
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
    if environment is None:
        prompts = [row["prompt"] for row in rows]
        return sample_completions(model, tokenizer, prompts, num_generations, max_completion_length, **sampling)
    # An environment of the user's own that has no objects may lack the argument `record_turns`.
    keywords = {"record_turns": True} if record_turns and capabilities(environment).has_instances else {}
    return environment.sample(model, tokenizer, rows, num_generations, max_completion_length, **keywords, **sampling)


class Capabilities(NamedTuple):
    """The capabilities of an environment: its attributes `has_instances`, `has_reward` and `has_state`."""

    has_instances: bool
    has_reward: bool
    has_state: bool


def capabilities(environment: Environment | None) -> Capabilities:
    """Return the capabilities of an environment; all are False for None."""
    return Capabilities(
        has_instances=getattr(environment, "has_instances", False),
        has_reward=getattr(environment, "has_reward", False),
        has_state=getattr(environment, "has_state", False),
    )


def tool_schemas(environment: Environment | None) -> list[dict] | None:
    """Return the JSON schemas that the chat template writes into each prompt of an environment; None without schemas.

    They are the attribute `schemas` of a `ToolEnvironment`; an environment that replies in plain text has none.
    """
    return getattr(environment, "schemas", None)
