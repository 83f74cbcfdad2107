"""Prompts as token ids, padded on the left; the padding token, and the tokens that end a completion."""

import torch

from grpo_lab.base.checks import InputError
from grpo_lab.rollout.prompting.templates import render_prompt
from grpo_lab.rollout.rollout import EncodedPrompts
from grpo_lab.tasks import Rows

MAX_MEASURED_PROMPTS = 200  # number of prompts that are encoded to find the longest one


def encode_prompts(tokenizer, prompts: list, tools: list[dict] | None = None) -> EncodedPrompts:
    """Encode prompts as token ids and mask, padded on the left.

    Args:
        tokenizer: The tokenizer of the policy.
        prompts: P prompts, each a string, or a list of messages for the chat template.
        tools: JSON schemas of the functions that the chat template describes to the model.

    Raises:
        ValueError: if a prompt has no token, if a message has no role or no content, if a content is not a string, or
            if the tokenizer has no chat template for messages.
    """
    if not prompts:
        raise InputError("prompts", prompts, "expected at least one prompt", problem="is empty")
    ids = [encode_prompt(tokenizer, prompt, f"prompts[{index}]", tools) for index, prompt in enumerate(prompts)]
    length = max(map(len, ids))
    pad = pad_token_id(tokenizer)
    prompt_ids = torch.tensor([[pad] * (length - len(row)) + row for row in ids])
    prompt_mask = torch.tensor([[False] * (length - len(row)) + [True] * len(row) for row in ids])
    return EncodedPrompts(prompt_ids, prompt_mask)


def longest_prompt(tokenizer, rows: Rows, tools: list[dict] | None = None) -> int:
    """Return the number of tokens of the longest of the first `MAX_MEASURED_PROMPTS` prompts.

    rows: The rows of a data set, each with a "prompt".
    tools: JSON schemas of the functions that the chat template describes to the model.
    """
    prompts = [rows[index]["prompt"] for index in range(min(len(rows), MAX_MEASURED_PROMPTS))]
    return encode_prompts(tokenizer, prompts, tools).ids.shape[1]


def encode_prompt(tokenizer, prompt, name: str = "prompt", tools: list[dict] | None = None) -> list[int]:
    """Encode a prompt. No special tokens are added to the text of a chat template, which writes its own.

    Args:
        tokenizer: The tokenizer of the policy.
        prompt: A string, or a list of messages for the chat template.
        name: The name of the prompt in errors.
        tools: JSON schemas of the functions that the chat template describes to the model.
    """
    text = render_prompt(tokenizer, prompt, name, tools)
    ids = tokenizer(text, add_special_tokens=isinstance(prompt, str), verbose=False)["input_ids"]
    if isinstance(prompt, str):
        ids = _without_end(tokenizer, text, ids)
    if not ids:
        raise InputError(name, prompt, "expected at least one to follow", problem=f"is {prompt!r}, which has no token")
    return ids


def _without_end(tokenizer, text: str, ids: list[int]) -> list[int]:
    """Cut off the special tokens that the tokenizer appends to a text, since a completion follows the text."""
    if not ids or ids[-1] not in getattr(tokenizer, "all_special_ids", ()):
        return ids
    text_ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    if text_ids:
        for start in range(len(ids) - len(text_ids) + 1):
            end = start + len(text_ids)
            if ids[start:end] == text_ids:
                return ids[:end]
    ends_with_eos = ids[-1] == tokenizer.eos_token_id and ids[-1] != getattr(tokenizer, "bos_token_id", None)
    return ids[:-1] if ends_with_eos and text_ids[-1:] != ids[-1:] else ids


def pad_token_id(tokenizer) -> int:
    """Return the id of the padding token, or of the end token if there is none: padding is masked by position."""
    if tokenizer.eos_token_id is None:
        raise InputError("tokenizer", None, "expected one, so that completions can end", problem="has no eos_token")
    return tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id


def end_token_ids(model, tokenizer) -> list[int]:
    """Return the ids of all tokens that end a completion, those of tokenizer and checkpoint, in ascending order."""
    config_ids = model.generation_config.eos_token_id
    config_ids = config_ids if isinstance(config_ids, list) else [config_ids]
    return sorted({token for token in [*config_ids, tokenizer.eos_token_id] if token is not None})
