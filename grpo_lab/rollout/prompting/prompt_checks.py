"""Whether prompts can be given to a model: in a form that its tokenizer takes, and within its context."""

import itertools
import sys
from collections.abc import Iterable, Iterator

from grpo_lab.base.checks import InputError, InputTypeError
from grpo_lab.rollout.forward.fast_paths import context_length
from grpo_lab.rollout.prompting.prompts import encode_prompt
from grpo_lab.rollout.prompting.templates import apply_template_together, check_prompt, is_complete, render_prompt

RENDERED_AT_ONCE = 1000


def check_context_length(model_config, tokens: int, max_completion_length: int, name: str = "prompt") -> None:
    """Raise ValueError unless prompt and completion together fit into the model's context."""
    limit = context_length(model_config)
    if limit is None or tokens + max_completion_length <= limit:
        return
    lengths = f"has {tokens} tokens and max_completion_length is {max_completion_length}"
    raise InputError(name, tokens, f"together they must be at most {limit}, the model's context", found=lengths)


def check_prompts(
    model_config,
    tokenizer,
    prompts: Iterable,
    max_completion_length: int,
    dataset: str = "dataset",
    tools: list[dict] | None = None,
) -> None:
    """Check all prompts of a run before its first step; those that surely fit are not encoded."""
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
                raise InputTypeError(row, error.value, found=error.details.removeprefix(" ")) from error
        start += len(batch)


def _surely_fits(text: str, max_prompt_length: int) -> bool:
    """True for a text that fits however it is encoded: no token stands for less than a byte, but for one that may open
    the sequence."""
    return 0 < len(text.encode()) < max_prompt_length


def _indices_to_check(tokenizer, prompts: list, max_prompt_length: int, tools: list[dict] | None) -> Iterator[int]:
    """Yield the index of each prompt that has to be checked by itself; the texts of all prompts show which."""
    try:
        for prompt in prompts:
            check_prompt(tokenizer, prompt, "prompt")
    except InputError:
        yield from range(len(prompts))
        return
    chats = [prompt for prompt in prompts if not isinstance(prompt, str)]
    texts = chats and apply_template_together(tokenizer, chats, tools)
    remaining = iter(texts or [None] * len(chats))
    for index, prompt in enumerate(prompts):
        text = prompt if isinstance(prompt, str) else next(remaining)
        is_valid = text is not None and _surely_fits(text, max_prompt_length)
        if not is_valid or not (isinstance(prompt, str) or is_complete(prompt, text)):
            yield index
