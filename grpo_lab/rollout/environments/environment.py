"""The base class of environments, and sampling with or without one."""

from collections.abc import Callable
from typing import Any

from grpo_lab.base.checks import InputError, InputTypeError
from grpo_lab.config.settings import SamplingParams
from grpo_lab.rollout.rollout import Rollout
from grpo_lab.rollout.sample import sample_prompts
from grpo_lab.tasks import Rows


class Environment:
    """Base class of the environments that `train` and `collect` take as `environment`.

    `TextEnvironment` and `ToolEnvironment` inherit from it, and so does an environment of your own: define `sample`,
    `check` and `functions_and_settings`; the attributes and the other methods have defaults. A class in TRL's form,
    with `reset` and tools, does not inherit: it is an `environment_factory`.

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

    def sample(
        self, model, tokenizer, rows: list[dict], sampling: SamplingParams, *, record_turns: bool = False
    ) -> Rollout:
        """Sample G episodes of each row of the data.

        Args:
            model, tokenizer: The policy and its tokenizer.
            rows: Rows of the data, P of them.
            sampling: The settings of the sampler, with G and the maximum number of tokens of an episode.
            record_turns: True records after every turn the reward so far and the state of each environment object, if
                it has them. An environment without `has_instances` may leave this argument out: it never gets it.
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

    def with_max_tool_calling_iterations(self, limit: int) -> "Environment":
        """Return the environment with this maximum number of turns to which it replies; one without it refuses."""
        expected = "leave it out: this environment has no limit of turns that could be set"
        raise InputError("max_tool_calling_iterations", limit, expected)

    def with_tool_timeout(self, tool_timeout: float) -> "Environment":
        """Return the environment with this limit of a call in seconds; one without such a limit refuses it."""
        expected = "leave it out: this environment has no time limit of calls that could be set"
        raise InputError("tool_timeout", tool_timeout, expected)


def check_is_environment(environment: Any) -> None:
    """Raise InputError unless the argument `environment` is an `Environment`, or None."""
    if environment is None or isinstance(environment, Environment):
        return
    base_class = f"{Environment.__module__}.{Environment.__qualname__}"
    expected = f"expected an object whose class inherits from {base_class}"
    if callable(getattr(environment, "reset", None)):
        expected += "; a class with `reset` and tools, as for TRL, is an environment_factory"
    raise InputTypeError("environment", environment, expected, problem=f"is {environment!r:.80}")


def sample_rollout(
    model,
    tokenizer,
    rows: list[dict],
    sampling: SamplingParams,
    environment: Environment | None = None,
    *,
    record_turns: bool = False,
) -> Rollout:
    """Sample G completions of each row of the data, or G episodes if there is an environment.

    Args:
        model, tokenizer: The policy and its tokenizer.
        rows: Rows of the data, P of them, each with a "prompt".
        sampling: The settings of the sampler, with G and the maximum number of tokens.
        environment: The environment that replies to the policy. None: the policy writes each completion alone.
        record_turns: True records after every turn the reward so far and the state of each environment object, if each
            episode has such an object.
    """
    check_is_environment(environment)
    if environment is None:
        return sample_prompts(model, tokenizer, [row["prompt"] for row in rows], sampling)
    if record_turns and environment.has_instances:
        return environment.sample(model, tokenizer, rows, sampling, record_turns=True)
    return environment.sample(model, tokenizer, rows, sampling)
