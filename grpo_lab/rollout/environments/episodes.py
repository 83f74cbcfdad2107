"""Sampling episodes: the policy writes, an environment replies within the completion, and the policy goes on.

Token in, token out: what was sampled is never decoded and encoded again, and a reply is encoded alone. This layer knows
no messages and no tools (those are in `tools/`): a calculator inside a thought is a stop string and a function.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from grpo_lab.base.checks import InputError, InputTypeError, RunError, check_at_least
from grpo_lab.rollout.decoding.dispatch import sample_sequences
from grpo_lab.rollout.decoding.sampling_params import SamplingRequest
from grpo_lab.rollout.decoding.turns import StopStrings, Turn, Turns
from grpo_lab.rollout.forward.modes import evaluating
from grpo_lab.rollout.inputs import Prompts
from grpo_lab.rollout.prompting.prompts import encode_prompts, end_token_ids
from grpo_lab.rollout.prompting.tags import tag_tokens, text_for_rewards, thought_prefixes
from grpo_lab.rollout.sample import Rollout, make_sampling_params, prompts_on_device


@dataclass
class Episode:
    """What is recorded of an episode besides its tokens: calls, messages, instance, rewards."""

    calls: int = 0  # replies of a text environment; calls of tools
    failures: int = 0  # calls that failed: no such tool, wrong arguments, an exception, no answer in time
    prompt: Any = None  # where the environment has changed it; None: that of the row
    messages: list[dict] | None = None  # the completion with its tool calls and their results; None: a text
    environment: Any = None  # the instance that this episode was played in
    reward: float | None = None  # that the environment gave, if it gives one
    # Where turns are compared: what each turn but the last has added to that reward, and the state each begins in.
    turn_rewards: list[float] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)
    reply_tokens: int = 0  # that the environment wrote


def sample_episodes(
    model,
    tokenizer,
    prompts: list,
    num_generations: int,
    max_completion_length: int,
    respond: Callable[[list[str]], Sequence[str | None]],
    *,
    stop_strings: Sequence[str] = (),
    max_turns: int | None = None,
    **sampling,
) -> Rollout:
    """Sample G episodes of each prompt, in which an environment replies whenever the policy's turn ends.

    A turn ends with the token that completes a stop string, which stays whole: what it holds after the stop string
    stays, too, and the reply comes after it. An end token ends the episode, unless its text is one of the stop strings,
    as in a chat. Of all tokens, `mask` has those that exist, and `policy_mask` those that the policy wrote, which alone
    have a log-probability here.

    Args:
        model, tokenizer, prompts, num_generations: as in `sample_completions`.
        max_completion_length: limit in tokens of a whole episode, replies included. Whatever it cuts is truncated; a
            reply for which no room is left is not appended, and the episode ends before it, truncated.
        respond: gets the texts of the episodes whose turn has just ended, each with all that was written after the
            prompt so far, and returns for each the text to append; "" appends nothing and the policy goes on; None says
            that the episode is over. It may be called for a few rows at a time.
        stop_strings: end a turn as soon as the text of the turn contains one of them, however it is split into tokens.
        max_turns: turns of the policy at most; nobody is asked after the last. None: as many as there is room for.
        sampling: temperature and all that follows it in `sample_completions`.

    Raises:
        ValueError: for settings out of range, before anything is sampled; and for what `respond` may not return.
    """
    if isinstance(stop_strings, str) or not all(isinstance(text, str) and text for text in stop_strings):
        raise InputTypeError("stop_strings", stop_strings, "expected a list of texts, none of them empty")
    tags = tag_tokens(tokenizer, end_token_ids(model, tokenizer))
    encoded = encode_prompts(tokenizer, prompts)
    prefixes = thought_prefixes(tokenizer, encoded)

    def reply(turns: list[Turn]) -> list[list[int] | None]:
        texts = [
            text_for_rewards(tokenizer, turn.earlier_ids + turn.ids, tags, prefixes[turn.row // num_generations])
            for turn in turns
        ]
        return [None if text is None else encode_reply(tokenizer, text) for text in _replies(respond, texts)]

    return sample_turns(
        model, tokenizer, encoded, num_generations, max_completion_length, reply,
        stop_strings=stop_strings, max_turns=max_turns, **sampling,
    )  # fmt: skip


@torch.no_grad()
def sample_turns(
    model,
    tokenizer,
    encoded: Prompts,
    num_generations: int,
    max_completion_length: int,
    reply: Callable[[list[Turn]], Sequence[list[int] | None]],
    *,
    stop_strings: Sequence[str] = (),
    max_turns: int | None = None,
    cache_implementation: str | None = None,
    **settings,
) -> Rollout:
    """Sample episodes whose environment gets the turns as token ids, and knows by `turn.row` whose they are.

    encoded: the prompts, as `encode_prompts` returns them.
    reply: gives for each turn the ids to append, None where the episode is over.
    settings: temperature, top_k, top_p and repetition_penalty; those that are left out are neutral.
    """
    sampling = make_sampling_params(
        model, tokenizer, num_generations, max_completion_length, cache_implementation, **settings
    )
    if max_turns is not None:
        check_at_least("max_turns", max_turns, 1)
    eos_token_ids = sampling.eos_token_ids
    pad = sampling.pad_token_id
    prompts = prompts_on_device(model, encoded, max_completion_length)
    rows = len(prompts.ids) * num_generations
    turns = Turns(rows, max_completion_length, eos_token_ids, StopStrings(tokenizer, stop_strings), reply, max_turns)
    with evaluating(model):
        request = SamplingRequest(prompts, num_generations, max_completion_length, sampling, turns)
        _, logp, entropy = sample_sequences(model, request, cache_implementation)
    completion_ids, mask, policy_mask, turn = turns.tensors(pad, model.device)
    length = mask.shape[1]
    tags = tag_tokens(tokenizer, list(eos_token_ids))
    prefixes = thought_prefixes(tokenizer, encoded)
    prompt_of_row = torch.arange(rows, device=mask.device) // num_generations
    return Rollout(
        prompt_ids=prompts.ids,
        prompt_mask=prompts.mask,
        prompt_of_row=prompt_of_row,
        completion_ids=completion_ids,
        mask=mask,
        logp=torch.where(policy_mask, logp[:, :length], 0),
        entropy=torch.where(policy_mask, entropy[:, :length], 0),
        truncated=torch.tensor(turns.truncated, device=mask.device),
        texts=[
            text_for_rewards(tokenizer, ids, tags, prefixes[row // num_generations])
            for row, ids in enumerate(turns.ids)
        ],
        policy_mask=policy_mask,
        turn=turn,
        episodes=[
            Episode(calls, reply_tokens=is_policy.count(False))
            for calls, is_policy in zip(turns.num_replies, turns.is_policy, strict=True)
        ],
        group=prompt_of_row,
    )


def encode_reply(tokenizer, text: str) -> list[int]:
    """The token ids of a reply, encoded alone: what stands before and after it changes none of them."""
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def _replies(respond: Callable, texts: list[str]) -> list[str | None]:
    """Ask `respond` for its replies and check them; an exception inside it ends the run with one line."""
    try:
        replies = respond(list(texts))
    except Exception as error:  # whatever somebody's environment does
        raise RunError("respond", found=f"failed: {type(error).__name__}: {error}") from error
    is_list = isinstance(replies, list | tuple)
    if not is_list or len(replies) != len(texts):
        result = f"returned {len(replies)} replies" if is_list else f"returned {replies!r:.60}"
        raise InputError("respond", replies, f"expected a list of {len(texts)}, one per text", found=result)
    for text in replies:
        if not isinstance(text, str | None):
            raise InputTypeError("respond", text, "expected a text, or None", found=f"returned {text!r:.60}")
    return list(replies)
