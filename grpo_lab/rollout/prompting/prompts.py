"""Prompts as token ids, padded on the left; which token pads, and which tokens end a completion."""

import torch

from grpo_lab.base.checks import InputError
from grpo_lab.rollout.inputs import Prompts
from grpo_lab.rollout.prompting.templates import render_prompt


def encode_prompts(tokenizer, prompts: list, tools: list[dict] | None = None) -> Prompts:
    """Turn prompts (strings, or message lists for the chat template) into ids and mask, padded on the left.

    tools: JSON schemas of the functions that the chat template tells the model of.

    Raises:
        ValueError: for a prompt without a token, messages without role or content, content that is no text, and message
            lists where the tokenizer has no chat template.
    """
    if not prompts:
        raise InputError("prompts", prompts, "expected at least one prompt", found="is empty")
    ids = [encode_prompt(tokenizer, prompt, f"prompts[{index}]", tools) for index, prompt in enumerate(prompts)]
    length = max(map(len, ids))
    pad = pad_token_id(tokenizer)
    prompt_ids = torch.tensor([[pad] * (length - len(row)) + row for row in ids])
    prompt_mask = torch.tensor([[False] * (length - len(row)) + [True] * len(row) for row in ids])
    return Prompts(prompt_ids, prompt_mask)


def encode_prompt(tokenizer, prompt, name: str = "prompt", tools: list[dict] | None = None) -> list[int]:
    """The token ids of a prompt. A chat template writes the special tokens itself; none is added to its text."""
    text = render_prompt(tokenizer, prompt, name, tools)
    ids = tokenizer(text, add_special_tokens=isinstance(prompt, str), verbose=False)["input_ids"]
    if isinstance(prompt, str):
        ids = _without_end(tokenizer, text, ids)
    if not ids:
        raise InputError(name, prompt, "expected at least one to follow", found=f"is {prompt!r}, which has no token")
    return ids


def _without_end(tokenizer, text: str, ids: list[int]) -> list[int]:
    """The ids of a text that is to go on, without what a tokenizer appends to one that is complete."""
    if not ids or ids[-1] not in getattr(tokenizer, "all_special_ids", ()):
        return ids
    bare = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    starts = (start for start in range(len(ids) - len(bare) + 1) if bare and ids[start : start + len(bare)] == bare)
    if (start := next(starts, None)) is not None:
        return ids[: start + len(bare)]
    is_appended = ids[-1] == tokenizer.eos_token_id != getattr(tokenizer, "bos_token_id", None)
    return ids[:-1] if is_appended and bare[-1:] != ids[-1:] else ids


def pad_token_id(tokenizer) -> int:
    """The padding token, or the end token in its place: padding is masked by position, so nothing is confused."""
    if tokenizer.eos_token_id is None:
        raise InputError("tokenizer", None, "expected one, so that completions can end", found="has no eos_token")
    return tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id


def end_token_ids(model, tokenizer) -> list[int]:
    """Every token that ends a completion: the tokenizer's, and those the checkpoint names."""
    config_ids = model.generation_config.eos_token_id
    config_ids = config_ids if isinstance(config_ids, list) else [config_ids]
    return sorted({token for token in [*config_ids, tokenizer.eos_token_id] if token is not None})
