"""Prompts as token ids, padded on the left; which token pads, and which tokens end a completion."""

import torch

from grpo_lab.base.checks import InputError
from grpo_lab.rollout.inputs import Prompts
from grpo_lab.rollout.prompting.prompt_checks import encode_prompt


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
