"""Whether prompts can be given to a model: in a form that its tokenizer takes, and within its context."""

import sys
from collections.abc import Iterable

from grpo_lab.commands.checks import InputError, InputTypeError
from grpo_lab.rollout.fast_paths import context_length


def _check_prompt(tokenizer, prompt, name: str) -> None:
    """Raise ValueError unless it is a string, or messages for a tokenizer with a chat template."""
    if isinstance(prompt, str):
        return
    if not (isinstance(prompt, list) and prompt and all(isinstance(message, dict) for message in prompt)):
        expected = "expected a string or a non-empty list of messages"
        raise InputError(name, prompt, expected, found=f"is {prompt!r:.60}")
    for index, message in enumerate(prompt):
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                state = f"is {message[key]!r:.60}" if key in message else "is missing"
                raise InputError(f"{name}[{index}][{key!r}]", message, "expected a text", found=state)
    if not getattr(tokenizer, "chat_template", None):
        problem = (
            "goes to the model as chat messages, and its tokenizer has no chat_template: take plain text, in a shell "
            "with `--chat_template none`; or put the chat_template.jinja of a model tuned from the same one into its "
            "folder"
        )
        raise InputError(name, prompt, found=problem)


def templated(tokenizer, prompt, name: str = "prompt") -> str:
    """The prompt as the tokenizer reads it: a list of messages goes through the chat template."""
    _check_prompt(tokenizer, prompt, name)
    if isinstance(prompt, str):
        return prompt
    try:
        return tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    except Exception as error:  # templates raise what they like, such as that roles must alternate
        problem = f"is refused by the tokenizer's chat template ({type(error).__name__}: {error})"
        advice = "where it takes no system message, `--system_prompt none` leaves that out"
        raise InputError(name, prompt, advice, found=problem) from error


def encode_prompt(tokenizer, prompt, name: str = "prompt") -> list[int]:
    """The token ids of a prompt. A chat template writes the special tokens itself; none is added to its text."""
    text = templated(tokenizer, prompt, name)
    if ids := tokenizer(text, add_special_tokens=isinstance(prompt, str), verbose=False)["input_ids"]:
        return ids
    raise InputError(name, prompt, "expected at least one to follow", found=f"is {prompt!r}, which has no token")


def check_room(model, tokens: int, max_completion_length: int, name: str = "prompt") -> None:
    """Raise ValueError unless prompt and completion together fit into the model's context."""
    limit = context_length(model.config)
    if limit is None or tokens + max_completion_length <= limit:
        return
    lengths = f"has {tokens} tokens and max_completion_length is {max_completion_length}"
    raise InputError(name, tokens, f"together they must be at most {limit}, the model's context", found=lengths)


def check_prompts(model, tokenizer, prompts: Iterable, max_completion_length: int, dataset: str = "dataset") -> None:
    """Check all prompts of a run before its first step; those that clearly have room are not encoded."""
    limit = context_length(model.config) or sys.maxsize
    for index, prompt in enumerate(prompts):
        try:
            size = len(templated(tokenizer, prompt).encode())
            most_tokens = size + 1  # no token stands for less than a byte, but for one that may open the sequence
            if not size or most_tokens + max_completion_length > limit:
                check_room(model, len(encode_prompt(tokenizer, prompt)), max_completion_length)
        except InputError as error:
            row = f"{dataset} row {index}: {error.argument}"
            raise InputTypeError(row, error.value, found=error.details.removeprefix(" ")) from error
