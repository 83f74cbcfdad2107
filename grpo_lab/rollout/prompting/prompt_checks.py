"""Checks of prompts before a run: that the tokenizer can encode them, and that they fit into the model's context."""

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence

from grpo_lab.base.checks import InputError, InputTypeError
from grpo_lab.rollout.model import context_length
from grpo_lab.rollout.prompting.prompts import encode_prompt
from grpo_lab.rollout.prompting.templates import apply_template_together, check_prompt, is_complete, render_prompt

RENDERED_AT_ONCE = 1000  # prompts


def check_context_length(model_config, tokens: int, max_completion_length: int, name: str = "prompt") -> None:
    """Raise ValueError unless prompt and completion together fit into the model's context.

    Args:
        model_config: The configuration of the model.
        tokens: Number of tokens of the prompt.
        max_completion_length: Maximum number of tokens of a completion.
        name: The name of the prompt in the error.
    """
    limit = context_length(model_config)
    if limit is None or tokens + max_completion_length <= limit:
        return
    lengths = f"has {tokens} tokens and max_completion_length is {max_completion_length}"
    raise InputError(name, tokens, f"together they must be at most {limit}, the model's context", problem=lengths)


def check_prompts(
    model_config,
    tokenizer,
    prompts: Iterable,
    max_completion_length: int,
    dataset: str = "dataset",
    tools: list[dict] | None = None,
) -> None:
    """Raise InputTypeError for the first prompt that cannot be encoded, or that is too long for the model's context.

    A prompt is not encoded if its text is so short that it fits in any case.

    Args:
        model_config: The configuration of the model.
        tokenizer: The tokenizer of the model.
        prompts: The prompts of a run.
        max_completion_length: Maximum number of tokens of a completion.
        dataset: The name of the data in the error.
        tools: JSON schemas of the functions that the chat template describes to the model.
    """
    max_prompt_length = (context_length(model_config) or sys.maxsize) - max_completion_length
    iterator, start = iter(prompts), 0
    while batch := [*itertools.islice(iterator, RENDERED_AT_ONCE)]:
        for index in _indices_to_check(tokenizer, batch, max_prompt_length, tools):
            prompt = batch[index]
            try:
                if not _surely_fits(render_prompt(tokenizer, prompt, tools=tools), max_prompt_length):
                    tokens = len(encode_prompt(tokenizer, prompt, tools=tools))
                    check_context_length(model_config, tokens, max_completion_length)
            except InputError as error:
                row = f"{dataset} row {start + index}: {error.argument}"
                raise InputTypeError(row, error.value, problem=error.details.removeprefix(" ")) from error
        start += len(batch)


def _surely_fits(text: str, max_prompt_length: int) -> bool:
    """Return True if a text fits however it is encoded: at most one token per byte, and one that opens the sequence."""
    return 0 < len(text.encode()) < max_prompt_length


def _indices_to_check(tokenizer, prompts: list, max_prompt_length: int, tools: list[dict] | None) -> Iterator[int]:
    """Yield the index of each prompt that has to be checked individually. For this, all texts are rendered together."""
    try:
        for prompt in prompts:
            check_prompt(tokenizer, prompt, "prompt")
    except InputError:
        yield from range(len(prompts))
        return
    chats = [prompt for prompt in prompts if not isinstance(prompt, str)]
    chat_texts: Sequence[str | None] | None = apply_template_together(tokenizer, chats, tools) if chats else []
    if chat_texts is None:  # all chats have to be checked individually
        chat_texts = [None] * len(chats)
    remaining_chat_texts = iter(chat_texts)
    for index, prompt in enumerate(prompts):
        is_chat = not isinstance(prompt, str)
        text = next(remaining_chat_texts) if is_chat else prompt
        if text is None or not _surely_fits(text, max_prompt_length) or (is_chat and not is_complete(prompt, text)):
            yield index
