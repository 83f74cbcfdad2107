"""Sampling episodes: the policy writes, an environment replies within the completion, and the policy goes on.

The environment gets text, but training uses token ids: sampled ids are never decoded and encoded again, and a reply is
encoded alone. Messages and tools are left to `tools/`. A calculator inside a thought, for example, needs only a stop
string and a function.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from grpo_lab.base.checks import InputError, InputTypeError, RunError, check_at_least
from grpo_lab.rollout.decoding.dispatch import sample_sequences
from grpo_lab.rollout.decoding.sampling_params import Samples
from grpo_lab.rollout.decoding.turns import EpisodeTokens, StopStrings, Turn
from grpo_lab.rollout.forward.modes import evaluation_mode
from grpo_lab.rollout.inputs import Prompts
from grpo_lab.rollout.prompting.prompts import encode_prompts, end_token_ids
from grpo_lab.rollout.prompting.tags import tag_tokens, text_for_rewards, texts_for_rewards, thought_prefixes
from grpo_lab.rollout.rollout import Episode, Rollout
from grpo_lab.rollout.sample import make_sampling_request


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

    A turn ends with the token that completes a stop string. This token stays whole, even if it goes on after the stop
    string, and the reply follows it. An end token ends the episode. If its text is one of the stop strings, as in a
    chat, it ends only the turn.

    Args:
        model, tokenizer: The policy and its tokenizer, as `load_policy` returns them.
        prompts: P prompts, each a string or a list of messages.
        num_generations: G, number of episodes of each prompt.
        max_completion_length: Maximum number of tokens of an episode, including the replies. An episode that reaches it
            is truncated. A reply that has no room left is not appended, and the episode ends before it, truncated.
        respond: A function that gets the texts of the episodes whose turn has just ended, each with everything that was
            written after the prompt. For each of them it returns a text to append: "" appends nothing and lets the
            policy go on; None ends the episode. It may be called for a few rows at a time.
        stop_strings: A turn ends as soon as its text contains one of these strings, however it is split into tokens.
        max_turns: Maximum number of turns of the policy. `respond` is not called after the last one, and the episode is
            truncated unless this turn ends with an end token. None sets no limit.
        sampling: The keyword arguments of `sample_completions`, from `temperature` on.

    Returns:
        A `Rollout`. Its `mask` is True at all tokens of an episode, its `policy_mask` at the tokens that the policy
        wrote. Only the latter have a log-probability in `logp`.

    Raises:
        ValueError: if an argument is out of its range (before anything is sampled), or if `respond` returns anything
            but a list of texts and None.
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
    """Sample G episodes of each prompt, in which `reply` gets the turns as token ids and returns token ids.

    Args:
        model, tokenizer: The policy and its tokenizer.
        encoded: The P prompts, as `encode_prompts` returns them.
        num_generations: G, number of episodes of each prompt.
        max_completion_length: Maximum number of tokens of an episode, including the replies.
        reply: A function that gets the turns that have just ended, and returns for each of them the ids to append, or
            None if its episode has ended. `turn.row` is the index of the episode.
        stop_strings, max_turns: The arguments of `sample_episodes`.
        cache_implementation: The argument of `sample_completions`.
        settings: Any of temperature, top_k, top_p and repetition_penalty; each is neutral by default.
    """
    request = make_sampling_request(
        model, tokenizer, encoded, num_generations, max_completion_length, cache_implementation, **settings
    )
    if max_turns is not None:
        check_at_least("max_turns", max_turns, 1)
    eos_token_ids = request.sampling.eos_token_ids
    stop = StopStrings(tokenizer, stop_strings)
    episode_tokens = EpisodeTokens(request.num_rows, max_completion_length, eos_token_ids, stop, reply, max_turns)
    with evaluation_mode(model):
        samples = sample_sequences(model, replace(request, episode_tokens=episode_tokens))
    texts = texts_for_rewards(tokenizer, episode_tokens.ids, encoded, eos_token_ids)
    return _rollout_of_episodes(request.prompts, episode_tokens, samples, texts, request.sampling.pad_token_id)


def _rollout_of_episodes(
    prompts: Prompts, episode_tokens: EpisodeTokens, samples: Samples, texts: list[str], pad_token_id: int
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
            Episode(calls, reply_tokens=is_policy.count(False))
            for calls, is_policy in zip(episode_tokens.num_replies, episode_tokens.is_policy, strict=True)
        ],
        group_of_row=prompt_of_row,
    )


def encode_reply(tokenizer, text: str) -> list[int]:
    """Return the token ids of a reply, encoded alone: they do not depend on the text before or after it."""
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def _replies(respond: Callable, texts: list[str]) -> list[str | None]:
    """Call `respond` and check the replies that it returns.

    Raises:
        RunError: if `respond` raises an exception.
        InputError: if it does not return one text or None for each of the texts.
    """
    try:
        replies = respond(list(texts))
    except Exception as error:  # the code of an environment may raise anything
        raise RunError("respond", problem=f"failed: {type(error).__name__}: {error}") from error
    is_list = isinstance(replies, list | tuple)
    if not is_list or len(replies) != len(texts):
        problem = f"returned {len(replies)} replies" if is_list else f"returned {replies!r:.60}"
        raise InputError("respond", replies, f"expected a list of {len(texts)}, one per text", problem=problem)
    for text in replies:
        if not isinstance(text, str | None):
            raise InputTypeError("respond", text, "expected a text, or None", problem=f"returned {text!r:.60}")
    return list(replies)
