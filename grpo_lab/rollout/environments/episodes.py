"""Sampling episodes as token ids: the policy writes, the environment replies within the completion, the policy goes on.

Training uses the ids that were sampled: they are never decoded and encoded again, and a reply is encoded alone. What
the environment reads is left to others: texts to `text_environment.py`, messages and calls of tools to `tools/`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from grpo_lab.base.checks import check_at_least
from grpo_lab.config.sampling_params import SamplingParams
from grpo_lab.rollout.completion_texts import CompletionTexts
from grpo_lab.rollout.decoding.sampling_request import EpisodeTokens, Samples, StopStrings, Turn
from grpo_lab.rollout.model import evaluation_mode
from grpo_lab.rollout.rollout import EncodedPrompts, Episode, Rollout
from grpo_lab.rollout.sample import make_sampling_request, sample_sequences


@torch.no_grad()
def sample_encoded_episodes(
    model,
    tokenizer,
    encoded: EncodedPrompts,
    sampling: SamplingParams,
    reply: Callable[[list[Turn]], Sequence[list[int] | None]],
    *,
    stop_strings: Sequence[str] = (),
    max_turns: int | None = None,
) -> Rollout:
    """Sample G episodes of each prompt, in which `reply` gets the turns as token ids and returns token ids.

    Args:
        model, tokenizer: The policy and its tokenizer.
        encoded: The P prompts, as `encode_prompts` returns them.
        sampling: The settings of the sampler.
        reply: A function that gets the turns that have just ended, and returns for each of them the ids to append, or
            None if its episode has ended. `turn.row` is the index of the episode.
        stop_strings: A turn ends as soon as its text contains one of these strings.
        max_turns: Maximum number of turns of the policy; None sets no limit.
    """
    request = make_sampling_request(model, tokenizer, encoded, sampling)
    if max_turns is not None:
        check_at_least("max_turns", max_turns, 1)
    eos_token_ids = request.eos_token_ids
    stop = StopStrings(tokenizer, stop_strings)
    length = sampling.max_completion_length
    episode_tokens = EpisodeTokens(request.num_rows, length, eos_token_ids, stop, reply, max_turns)
    with evaluation_mode(model):
        samples = sample_sequences(model, replace(request, episode_tokens=episode_tokens))
    completion_texts = CompletionTexts(tokenizer, encoded, sampling.num_generations, eos_token_ids)
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
