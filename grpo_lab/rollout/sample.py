"""Sampling completions: G of each prompt, and the log-probability of each token, recorded while it is drawn.

From prompts as text to a `Rollout`; `dispatch.py` picks the sampler that draws the tokens.

A comment such as `# [padding]` labels a line that exercises and mutation tests break (formulas/lines.py).
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.base.checks import check_at_least, check_choice
from grpo_lab.logprobs import completion_mask
from grpo_lab.rollout.decoding.dispatch import sample_sequences
from grpo_lab.rollout.decoding.sampling_params import SamplingParams, SamplingRequest
from grpo_lab.rollout.forward.modes import evaluating
from grpo_lab.rollout.inputs import Prompts
from grpo_lab.rollout.prompting.prompt_checks import check_context_length
from grpo_lab.rollout.prompting.prompts import encode_prompts, end_token_ids, pad_token_id
from grpo_lab.rollout.prompting.tags import tag_tokens, text_with_tags, thought_prefixes, with_thought_prefix


@dataclass(frozen=True)
class Rollout:
    """P prompts with G completions each, B = P*G rows. `rollout[rows]` is a rollout of some rows, with all prompts."""

    prompt_ids: Int[Tensor, "P L"]  # padded on the left
    prompt_mask: Bool[Tensor, "P L"]
    prompt_of_row: Int[Tensor, " B"]  # which prompt a row answers
    completion_ids: Int[Tensor, "B T"]  # padded on the right
    mask: Bool[Tensor, "B T"]  # up to and with the first end token
    logp: Float[Tensor, "B T"]  # recorded while sampling; 0 where the mask is False
    entropy: Float[Tensor, "B T"]  # recorded while sampling
    truncated: Bool[Tensor, " B"]  # stopped by the length limit
    texts: list[str]  # as the rewards see them, with the tags that the prompt opened or that are special tokens
    policy_mask: Bool[Tensor, "B T"]  # tokens that the policy wrote; `mask` has the environment's, too
    turn: Int[Tensor, "B T"]  # the turn of each token, or to which it is the reply, from 0; -1 for none
    episodes: Any  # where there is an environment: an `Episode` per row (see `episodes.py`); else None
    group: Int[Tensor, " B"]  # the row of the data of each; a prompt may be one episode's alone

    @classmethod
    def without_environment(
        cls, prompt_ids, prompt_mask, prompt_of_row, completion_ids, mask, logp, entropy, truncated, texts
    ) -> "Rollout":
        """A rollout whose tokens are all the policy's, in one turn; the arguments are the fields of these names."""
        return cls(
            prompt_ids=prompt_ids,
            prompt_mask=prompt_mask,
            prompt_of_row=prompt_of_row,
            completion_ids=completion_ids,
            mask=mask,
            logp=logp,
            entropy=entropy,
            truncated=truncated,
            texts=texts,
            policy_mask=mask,
            turn=mask.long() - 1,
            episodes=None,
            group=prompt_of_row,
        )

    def __getitem__(self, rows: slice | Int[Tensor, " R"] | Bool[Tensor, " B"]) -> "Rollout":
        by_row = (
            "prompt_of_row", "completion_ids", "mask", "logp", "entropy", "truncated", "policy_mask", "turn", "group",
        )  # fmt: skip
        cut: dict = {name: getattr(self, name)[rows] for name in by_row}
        indices = torch.arange(len(self.texts))[rows if isinstance(rows, slice) else rows.cpu()].tolist()
        cut["texts"] = [self.texts[index] for index in indices]
        if self.episodes is not None:
            cut["episodes"] = [self.episodes[index] for index in indices]
        return replace(self, **cut)


@torch.no_grad()
def sample_completions(
    model,
    tokenizer,
    prompts: list,
    num_generations: int,
    max_completion_length: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    repetition_penalty: float = 1.0,
    cache_implementation: str | None = None,
) -> Rollout:
    """Sample G completions of each prompt, and record the log-probability of each token.

    Args:
        model, tokenizer: as `load_policy` returns them.
        prompts: P strings or message lists.
        num_generations: G, completions of each prompt.
        max_completion_length: limit in tokens.
        temperature: greater than 0. top_k = 0, top_p = 1 and repetition_penalty = 1 are neutral.
        cache_implementation: "dynamic" samples by transformers' `generate` whatever the model, such as one that a
            wrapper has changed. None: the faster way, where it is right (see `fast_paths.py`).

    Returns:
        A `Rollout`. Its `logp` is the log-probability under the distribution that was really sampled from, so asking
        for top_k, top_p or a penalty shows as a difference from the recomputed log-probabilities.

    Raises:
        ValueError: before anything is sampled; for settings out of range, and for prompts that the tokenizer cannot
            take or that leave no room in the context.
    """
    sampling = make_sampling_params(
        model, tokenizer, num_generations, max_completion_length, cache_implementation,
        temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty,
    )  # fmt: skip
    eos_token_ids = list(sampling.eos_token_ids)
    encoded = encode_prompts(tokenizer, prompts)
    encoded_on_device = prompts_on_device(model, encoded, max_completion_length)
    request = SamplingRequest(encoded_on_device, num_generations, max_completion_length, sampling)
    with evaluating(model):
        sequences, logp, entropy = sample_sequences(model, request, cache_implementation)
    completion_ids, mask, truncated, texts = read_sequences(
        sequences, encoded_on_device.ids.shape[1], eos_token_ids, tokenizer
    )
    tags = tag_tokens(tokenizer, eos_token_ids)
    prefixes = thought_prefixes(tokenizer, encoded)
    if tags:
        rows = zip(completion_ids.cpu(), mask.cpu(), strict=True)
        texts = [text_with_tags(tokenizer, ids[is_sampled].tolist(), tags) for ids, is_sampled in rows]
    texts = [with_thought_prefix(text, prefixes[row // num_generations]) for row, text in enumerate(texts)]
    return Rollout.without_environment(
        prompt_ids=encoded_on_device.ids,
        prompt_mask=encoded_on_device.mask,
        prompt_of_row=torch.arange(len(mask), device=mask.device) // num_generations,  # [groups]
        completion_ids=completion_ids,  # [ids]
        mask=mask,
        logp=torch.where(mask, logp, 0),
        entropy=torch.where(mask, entropy, 0),
        truncated=truncated,
        texts=texts,
    )


def make_sampling_params(
    model, tokenizer, num_generations: int, max_completion_length: int, cache_implementation: str | None, **settings
) -> SamplingParams:
    """The distribution to draw from, once the sizes and the way of drawing are in their ranges; InputError if not."""
    check_at_least("num_generations", num_generations, 1)
    check_at_least("max_completion_length", max_completion_length, 1)
    check_choice("cache_implementation", cache_implementation, (None, "dynamic"))
    return SamplingParams(tuple(end_token_ids(model, tokenizer)), pad_token_id(tokenizer), **settings)


def prompts_on_device(model, prompts: Prompts, max_completion_length: int) -> Prompts:
    """The prompts on the model's device; InputError for one that leaves no room in the context."""
    for index, tokens in enumerate(prompts.mask.sum(-1).tolist()):
        check_context_length(model.config, tokens, max_completion_length, f"prompts[{index}]")
    return prompts.to(model.device)


def read_sequences(
    sequences: Int[Tensor, "B S"], prompt_length: int, eos_token_ids: list[int], tokenizer
) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"], Bool[Tensor, " B"], list[str]]:
    """Cut generated sequences into what training needs: the completions, which of their tokens count, and their texts.

    The ids of the completions are the very ids that were sampled, cut out and never encoded again: encoding the text
    may give other tokens ("a" + "b" sampled as two tokens reads "ab", which is one), and the policy would be rewarded
    for tokens that it did not sample. The text is for the rewards alone. The end token stays in: stopping was a choice,
    too.

    Args:
        sequences: prompt and completion of each row, shape (B, S) with S = L + T. The prompt is padded on the left, so
            that all completions begin at the same column; what follows a completion's first end token is padding.
        prompt_length: L, columns that the prompt takes, its padding included.
        eos_token_ids: every token that ends a completion. The padding token may be one of them.
        tokenizer: decodes the tokens; special tokens do not show in the text.

    Returns:
        completion_ids: shape (B, T). mask: shape (B, T), True up to and with the first end token:
        `completion_mask(completion_ids, eos_token_ids)` of notebook 01. truncated: shape (B,), True where no end token
        came before the length limit. texts: B strings, `tokenizer.decode(ids, skip_special_tokens=True)` of the tokens
        under the mask.
    """
    completion_ids = sequences[:, prompt_length:]
    mask = completion_mask(completion_ids, eos_token_ids)
    truncated = ~torch.isin(completion_ids, torch.tensor(eos_token_ids, device=mask.device)).any(-1)
    rows = zip(completion_ids.cpu(), mask.cpu(), strict=True)
    texts = [tokenizer.decode(row[in_completion], skip_special_tokens=True) for row, in_completion in rows]
    return completion_ids, mask, truncated, texts
