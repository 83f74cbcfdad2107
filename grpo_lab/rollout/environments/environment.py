"""The base class of environments, and sampling with or without one.

In an episode, the policy writes, the environment replies within the completion, and the policy goes on. Training uses
the ids that were sampled: they are never decoded and encoded again, and a reply is encoded alone. What the environment
reads is left to others: texts to `text_environment.py`, messages and calls of tools to `tools.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from grpo_lab.base.checks import InputError, InputTypeError, check_at_least
from grpo_lab.config.settings import SamplingParams
from grpo_lab.rollout.completion_texts import CompletionTexts
from grpo_lab.rollout.decoding.sampling_request import EpisodeTokens, Samples, StopStrings, Turn
from grpo_lab.rollout.model import evaluation_mode
from grpo_lab.rollout.rollout import EncodedPrompts, Episode, Rollout
from grpo_lab.rollout.sample import draw_samples, make_sampling_request, sample_prompts
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
        self, model, tokenizer, rows: list[dict], sampling_params: SamplingParams, *, record_turns: bool = False
    ) -> Rollout:
        """Sample G episodes of each row of the data.

        Args:
            model, tokenizer: The policy and its tokenizer.
            rows: Rows of the data, P of them.
            sampling_params: The settings of the sampler, with G and the maximum number of tokens of an episode.
            record_turns: True records after every turn the reward so far and the state of each environment object, if
                it has them. Only an environment that `has_instances` is asked for this; the method `sample` of any
                other one needs no such argument.
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
    sampling_params: SamplingParams,
    environment: Environment | None = None,
    *,
    record_turns: bool = False,
) -> Rollout:
    """Sample G completions of each row of the data, or G episodes if there is an environment.

    Args:
        model, tokenizer: The policy and its tokenizer.
        rows: Rows of the data, P of them, each with a "prompt".
        sampling_params: The settings of the sampler, with G and the maximum number of tokens.
        environment: The environment that replies to the policy. None: the policy writes each completion alone.
        record_turns: True records after every turn the reward so far and the state of each environment object, if each
            episode has such an object.
    """
    check_is_environment(environment)
    if environment is None:
        return sample_prompts(model, tokenizer, [row["prompt"] for row in rows], sampling_params)
    if record_turns and environment.has_instances:
        return environment.sample(model, tokenizer, rows, sampling_params, record_turns=True)
    return environment.sample(model, tokenizer, rows, sampling_params)


@torch.no_grad()
def sample_episodes_from_ids(
    model,
    tokenizer,
    encoded: EncodedPrompts,
    sampling_params: SamplingParams,
    reply: Callable[[list[Turn]], Sequence[list[int] | None]],
    *,
    stop_strings: Sequence[str] = (),
    max_turns: int | None = None,
) -> Rollout:
    """Sample G episodes of each prompt, in which `reply` gets the turns as token ids and returns token ids.

    Args:
        model, tokenizer: The policy and its tokenizer.
        encoded: The P prompts, as `encode_prompts` returns them.
        sampling_params: The settings of the sampler.
        reply: A function that gets the turns that have just ended, and returns for each of them the ids to append, or
            None if its episode has ended. `turn.row` is the index of the episode.
        stop_strings: A turn ends as soon as its text contains one of these strings.
        max_turns: Maximum number of turns of the policy; None sets no limit.
    """
    request = make_sampling_request(model, tokenizer, encoded, sampling_params)
    if max_turns is not None:
        check_at_least("max_turns", max_turns, 1)
    eos_token_ids = request.eos_token_ids
    stop = StopStrings(tokenizer, stop_strings)
    length = sampling_params.max_completion_length
    episode_tokens = EpisodeTokens(request.num_rows, length, eos_token_ids, stop, reply, max_turns)
    with evaluation_mode(model):
        samples = draw_samples(model, replace(request, episode_tokens=episode_tokens))
    completion_texts = CompletionTexts(tokenizer, encoded, sampling_params.num_generations, eos_token_ids)
    texts = [completion_texts.text(row, ids) for row, ids in enumerate(episode_tokens.ids)]
    return _rollout_of_episodes(request.prompts, episode_tokens, samples, texts, request.pad_token_id)


def _rollout_of_episodes(
    prompts: EncodedPrompts, episode_tokens: EpisodeTokens, samples: Samples, texts: list[str], pad_token_id: int
) -> Rollout:
    """Return the rollout of episodes that have ended; the G episodes of a prompt are adjacent.

    Args:
        prompts: The P prompts, on the device of the model.
        episode_tokens: The B = P * G episodes, as token ids.
        samples: Their log-probabilities and entropies, also at the replies.
        texts: Their texts for the rewards.
        pad_token_id: The padding after shorter episodes.
    """
    device = prompts.ids.device
    completion_ids, mask, policy_mask, turn_of_token = episode_tokens.tensors(pad_token_id, device)
    num_rows, length = mask.shape
    prompt_of_row = torch.arange(num_rows, device=device) // (num_rows // len(prompts.ids))
    return Rollout(
        prompt_ids=prompts.ids,
        prompt_mask=prompts.mask,
        prompt_of_row=prompt_of_row,
        completion_ids=completion_ids,
        mask=mask,
        logp=torch.where(policy_mask, samples.logp[:, :length], 0),
        entropy=torch.where(policy_mask, samples.entropy[:, :length], 0),
        truncated=torch.tensor(episode_tokens.truncated, device=device),
        texts=texts,
        policy_mask=policy_mask,
        turn_of_token=turn_of_token,
        episodes=[
            Episode(num_replies, num_reply_tokens=is_policy.count(False))
            for num_replies, is_policy in zip(episode_tokens.num_replies, episode_tokens.is_policy, strict=True)
        ],
        group_of_row=prompt_of_row,
    )


def encode_reply(tokenizer, text: str) -> list[int]:
    """Return the token ids of a reply, encoded alone: they do not depend on the text before or after it."""
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
