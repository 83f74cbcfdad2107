"""Prompts: they are rendered as text, encoded as token ids, and checked; and what a chat template changes.

`render_prompt` writes the text of a prompt, `encode_prompts` encodes the prompts of a rollout, and `check_prompts`
checks those of a run before its first step.

Some templates drop the system message, strip the thoughts of earlier answers, or write the date. Here the system
message and the thoughts are put back, so that the model gets all messages. The date is always the same, so that a
resumed run has the same prompts. `find_prompt_quirks` reports this before the first step; a template that leaves out
the question is an error.
"""

import itertools
import json
import re
import sys
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import torch

from grpo_lab.base.checks import InputError, InputTypeError
from grpo_lab.rollout.completion_texts import opening_tag, tag_tokens, thought_prefix
from grpo_lab.rollout.model import context_length
from grpo_lab.rollout.rollout import EncodedPrompts
from grpo_lab.tasks import Rows

MAX_MEASURED_PROMPTS = 200  # number of prompts that are encoded to find the longest one
RENDERED_AT_ONCE = 1000  # prompts
TEMPLATE_DATE = datetime(2024, 7, 26)  # the date that Llama 3's template writes if it has no clock
_THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_END_OF_PROMPT = "\0\1"  # separates the texts of several prompts; if a text contains it, they are rendered one by one
_HIDDEN = {"<think>": "\ue001", "</think>": "\ue002"}  # private-use characters, which no template searches for
MAX_EXAMINED_PROMPTS = 8  # the first prompt of each order of roles is examined
NUM_REPEATS = 4  # number of times that a prompt is rendered again, to find a template that draws random numbers
# The quirks that are repaired in the prompts, and that an engine which renders prompts itself would not repair.
PROMPT_QUIRKS = ("system", "thoughts", "appended_eos")


def render_prompt(tokenizer, prompt, name: str = "prompt", tools: list[dict] | None = None) -> str:
    """Return the text of a prompt: a string as it is, or messages by the chat template, with lost ones put back.

    Args:
        tokenizer: The tokenizer with the chat template.
        prompt: A string, or a list of messages.
        name: The name of the prompt in errors.
        tools: JSON schemas of the functions that the chat template describes to the model.
    """
    check_prompt_form(tokenizer, prompt, name)
    if isinstance(prompt, str):
        return prompt
    text = apply_template(tokenizer, prompt, name, tools=tools)
    if loses_thoughts(prompt, text) or loses_system(prompt, text):
        text = restore_lost_messages(tokenizer, prompt, text, name, tools)
    return text


def check_prompt_form(tokenizer, prompt, name: str) -> None:
    """Raise InputError unless the prompt is a string, or a list of messages for a tokenizer with a chat template."""
    if isinstance(prompt, str):
        return
    if not (isinstance(prompt, list) and prompt and all(isinstance(message, dict) for message in prompt)):
        expected = "expected a string or a non-empty list of messages"
        raise InputError(name, prompt, expected, problem=f"is {prompt!r:.60}")
    for index, message in enumerate(prompt):
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                state = f"is {message[key]!r:.60}" if key in message else "is missing"
                raise InputError(f"{name}[{index}][{key!r}]", message, "expected a text", problem=state)
    if not getattr(tokenizer, "chat_template", None):
        problem = (
            "goes to the model as chat messages, and its tokenizer has no chat_template: take plain text, in a shell "
            "with `--chat_template none`; or put the chat_template.jinja of a model tuned from the same one into its "
            "folder"
        )
        raise InputError(name, prompt, problem=problem)


def apply_template(
    tokenizer,
    messages: list[dict],
    name: str = "prompt",
    date: datetime = TEMPLATE_DATE,
    tools: list[dict] | None = None,
    **arguments: Any,
) -> str:
    """Return the text that the chat template writes for messages.

    Args:
        tokenizer: The tokenizer with the chat template.
        messages: The messages of a prompt.
        name: The name of the prompt in errors.
        date: The date, for a template that writes it.
        tools: JSON schemas of the functions that the chat template describes to the model.
        arguments: Further keyword arguments of `apply_chat_template`.
    """
    if "strftime_now" in str(tokenizer.chat_template):
        arguments["strftime_now"] = date.strftime
    if tools:
        arguments["tools"] = tools
    try:
        return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **arguments)
    except Exception as error:  # templates raise errors of their own, such as that roles must alternate
        problem = f"is refused by the tokenizer's chat template ({type(error).__name__}: {error})"
        advice = "where it takes no system message, `--system_prompt none` leaves that out"
        raise InputError(name, messages, advice, problem=problem) from error


def encode_prompts(tokenizer, prompts: list, tools: list[dict] | None = None) -> EncodedPrompts:
    """Encode prompts as token ids and mask, padded on the left.

    Args:
        tokenizer: The tokenizer of the policy.
        prompts: P prompts, each a string, or a list of messages for the chat template.
        tools: JSON schemas of the functions that the chat template describes to the model.

    Raises:
        InputError: if a prompt has no token, if a message has no role or no content, if a content is not a string, or
            if the tokenizer has no chat template for messages.
    """
    if not prompts:
        raise InputError("prompts", prompts, "expected at least one prompt", problem="is empty")
    ids = [prompt_token_ids(tokenizer, prompt, f"prompts[{index}]", tools) for index, prompt in enumerate(prompts)]
    length = max(map(len, ids))
    pad = pad_token_id(tokenizer)
    prompt_ids = torch.tensor([[pad] * (length - len(row)) + row for row in ids])
    prompt_mask = torch.tensor([[False] * (length - len(row)) + [True] * len(row) for row in ids])
    return EncodedPrompts(prompt_ids, prompt_mask)


def prompt_token_ids(tokenizer, prompt, name: str = "prompt", tools: list[dict] | None = None) -> list[int]:
    """Return the token ids of one prompt. A chat template writes its own special tokens, so none are added to its text.

    Args:
        tokenizer: The tokenizer of the policy.
        prompt: A string, or a list of messages for the chat template.
        name: The name of the prompt in errors.
        tools: JSON schemas of the functions that the chat template describes to the model.
    """
    return _text_token_ids(tokenizer, render_prompt(tokenizer, prompt, name, tools), prompt, name)


def _text_token_ids(tokenizer, text: str, prompt, name: str = "prompt") -> list[int]:
    """Return the token ids of the text of a prompt. No tokens are added to a chat's text, which has its special tokens.

    Args:
        tokenizer: The tokenizer of the policy.
        text: The text of the prompt, as `render_prompt` returns it.
        prompt: The prompt, a string or a list of messages.
        name: The name of the prompt in errors.
    """
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


def longest_prompt(tokenizer, rows: Rows, tools: list[dict] | None = None) -> int:
    """Return the number of tokens of the longest of the first `MAX_MEASURED_PROMPTS` prompts.

    rows: The rows of a data set, each with a "prompt".
    tools: JSON schemas of the functions that the chat template describes to the model.
    """
    prompts = [rows[index]["prompt"] for index in range(min(len(rows), MAX_MEASURED_PROMPTS))]
    return encode_prompts(tokenizer, prompts, tools).ids.shape[1]


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


def check_prompts(
    model_config,
    tokenizer,
    prompts: Iterable,
    max_completion_length: int,
    dataset: str = "dataset",
    tools: list[dict] | None = None,
) -> None:
    """Raise InputError for the first prompt that cannot be encoded, or that is too long for the model's context.

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
        chat_texts = iter(apply_template_together(tokenizer, [p for p in batch if not isinstance(p, str)], tools))
        for index, prompt in enumerate(batch):
            text = prompt if isinstance(prompt, str) else next(chat_texts)
            try:
                if text is None:
                    text = render_prompt(tokenizer, prompt, tools=tools)
                # There is at most one token per byte, and one that opens the sequence.
                surely_fits = 0 < len(text.encode()) < max_prompt_length
                if not surely_fits:
                    tokens = len(_text_token_ids(tokenizer, text, prompt))
                    check_context_length(model_config, tokens, max_completion_length)
            except InputError as error:
                row = f"{dataset} row {start + index}: {error.argument}"
                problem = error.message_after_argument.removeprefix(" ")
                raise InputTypeError(row, error.value, problem=problem) from error
        start += len(batch)


def check_context_length(model_config, tokens: int, max_completion_length: int, name: str = "prompt") -> None:
    """Raise InputError unless prompt and completion together fit into the model's context.

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


def apply_template_together(tokenizer, chats: list, tools: list[dict] | None = None) -> list[str | None]:
    """Render several chats by one call of the template inside a loop, which is five times as fast.

    The text of a chat is None if it has to be rendered alone: if the template loses one of its messages. All are None
    if the template refuses a chat, or writes a different text inside a loop.
    """
    if not chats:
        return []
    try:
        for chat in chats:
            check_prompt_form(tokenizer, chat, "prompt")
        source = tokenizer.get_chat_template(tools=tools).removesuffix("\n")  # Jinja drops it, too
        loop = f"{{% for messages in all_messages %}}\n{source}{_END_OF_PROMPT}{{% endfor %}}"
        text = apply_template(tokenizer, chats[0], tools=tools, chat_template=loop, all_messages=chats)
        *texts, after_last = text.split(_END_OF_PROMPT)
        first_and_last = (apply_template(tokenizer, chat, tools=tools) for chat in (chats[0], chats[-1]))
        if not after_last and len(texts) == len(chats) and [texts[0], texts[-1]] == [*first_and_last]:
            return [
                None if loses_thoughts(chat, text) or loses_system(chat, text) else text
                for chat, text in zip(chats, texts, strict=True)
            ]
    except Exception:  # templates raise errors of their own; rendering one by one will name the prompt
        pass
    return [None] * len(chats)


# What chat templates and tokenizers change in a prompt: the repair of what they lose, and a report.


def loses_system(messages: list[dict], text: str) -> bool:
    """Return True if the text of a prompt lacks one of its system messages."""
    return any(message["role"] == "system" and not contains(text, message["content"]) for message in messages)


def loses_thoughts(messages: list[dict], text: str) -> bool:
    """Return True if the text of a prompt lacks a thought (<think>...</think>) of one of its earlier answers."""
    answers = (message["content"] for message in messages if message["role"] == "assistant")
    return any(not contains(text, thought) for answer in answers for thought in _THOUGHT.findall(answer))


def restore_lost_messages(
    tokenizer, messages: list[dict], text: str, name: str = "prompt", tools: list[dict] | None = None
) -> str:
    """Return the text of a prompt with the thoughts and the system messages that its plain text lacks.

    Args:
        tokenizer: The tokenizer with the chat template.
        messages: The messages of the prompt.
        text: What the chat template writes for them.
        name: The name of the prompt in errors.
        tools: JSON schemas of the functions that the chat template describes to the model.
    """
    if loses_thoughts(messages, text):
        opening, closing = _HIDDEN["<think>"], _HIDDEN["</think>"]
        messages = [
            message | {"content": message["content"].replace("<think>", opening).replace("</think>", closing)}
            if message["role"] == "assistant"
            else message
            for message in messages
        ]
        text = apply_template(tokenizer, messages, name, tools=tools)
    if loses_system(messages, text):
        text_with_system = apply_template(tokenizer, system_in_question(messages), name, tools=tools)
        text = text if loses_system(messages, text_with_system) else text_with_system
    for tag, hidden in _HIDDEN.items():
        text = text.replace(hidden, tag)
    return text


def system_in_question(messages: list[dict]) -> list[dict]:
    """Move the system messages to the beginning of the user's first message."""
    system = [message["content"] for message in messages if message["role"] == "system"]
    dialogue = [message for message in messages if message["role"] != "system"]
    question_index = next((index for index, message in enumerate(dialogue) if message["role"] == "user"), None)
    if question_index is None:
        return messages
    question = dialogue[question_index] | {"content": "\n\n".join([*system, dialogue[question_index]["content"]])}
    return [*dialogue[:question_index], question, *dialogue[question_index + 1 :]]


def contains(text: str, content: str) -> bool:
    """Return True if a text contains the content of a message, with any white space, plain or written as JSON."""
    if content in text:
        return True
    plain_text, plain_content = " ".join(text.split()), " ".join(content.split())
    return plain_content in plain_text or json.dumps(plain_content, ensure_ascii=False)[1:-1] in plain_text


def find_prompt_quirks(tokenizer, prompts: Iterable, eos_token_ids: Iterable[int] = ()) -> dict[str, str]:
    """Find the quirks of a tokenizer and its chat template; return a line on each, by the name of the quirk.

    Args:
        tokenizer: The tokenizer of the policy.
        prompts: The prompts of a run.
        eos_token_ids: The tokens that end a completion.

    Raises:
        InputError: if the template leaves out the question.
    """
    quirks: dict[str, str] = {}
    if tags := tag_tokens(tokenizer, eos_token_ids):
        names = ", ".join(tags.values())
        quirks["tags"] = f"{names} are special tokens of this tokenizer: they stay in what the rewards see"
    end_tokens = [*filter(None, tokenizer.convert_ids_to_tokens([*eos_token_ids]))]
    first_by_roles: dict[tuple, Any] = {}
    for prompt in prompts:
        roles = () if isinstance(prompt, str) else tuple(message.get("role") for message in prompt)
        if len(first_by_roles) < MAX_EXAMINED_PROMPTS:
            first_by_roles.setdefault(roles, prompt)
    for prompt in first_by_roles.values():
        find_quirks = _text_quirks if isinstance(prompt, str) else _chat_quirks
        quirks = find_quirks(tokenizer, prompt) | quirks
        text = render_prompt(tokenizer, prompt).rstrip()
        if end_token := next(filter(text.endswith, end_tokens), None):
            subject = (
                "the prompt" if isinstance(prompt, str) else "the chat template opens no turn of its own: the prompt"
            )
            line = f"{subject} ends with the end token {end_token!r}, after which the model goes on"
            quirks = {"ends_with_eos": line} | quirks
        if prefix := thought_prefix(tokenizer, prompt_token_ids(tokenizer, prompt)):
            subject = "the prompt" if isinstance(prompt, str) else "the chat template"
            closing = " and closes it at once" if "/" in prefix else ""
            tag = opening_tag(prefix)
            line = f"{subject} opens {tag} itself{closing}: the text that the rewards see begins with this tag"
            quirks = {"opened": line} | quirks
    return quirks


def _text_quirks(tokenizer, prompt: str) -> dict[str, str]:
    complete_ids = tokenizer(prompt, add_special_tokens=True, verbose=False)["input_ids"]
    prompt_ids = prompt_token_ids(tokenizer, prompt)
    if len(complete_ids) == len(prompt_ids):
        return {}
    appended = tokenizer.decode(complete_ids[len(prompt_ids) :], skip_special_tokens=False)
    return {"appended_eos": f"the tokenizer appends {appended!r} to a text: it is left out of the prompts"}


def _chat_quirks(tokenizer, prompt: list[dict]) -> dict[str, str]:
    quirks = {}
    template_text = apply_template(tokenizer, prompt)
    text = render_prompt(tokenizer, prompt)
    questions = [message["content"] for message in prompt if message["role"] == "user"]
    if questions and not any(word in text for word in questions[-1].split()):
        problem = f"leaves out what the user says, {questions[-1]!r:.60}"
        raise InputError("chat_template", None, "expected one that writes every message", problem=problem)
    if loses_system(prompt, template_text):
        is_repaired = not loses_system(prompt, text)
        remedy = "it stands before the first question" if is_repaired else "the model does not get it"
        quirks["system"] = f"the chat template drops the system message: {remedy}"
    if loses_thoughts(prompt, template_text):
        remedy = "they are kept in the prompts" if not loses_thoughts(prompt, text) else "the model does not get them"
        quirks["thoughts"] = f"the chat template strips the thoughts of earlier answers: {remedy}"
    contents = [message["content"] for message in prompt if message["role"] != "system"]
    contents = [content for content in contents if "<think>" not in content]
    lost_content = next((content for content in contents if not contains(text, content)), None)
    if lost_content:
        quirks["message"] = f"the chat template changes or drops a message, {lost_content!r:.60}"
    if any(apply_template(tokenizer, prompt) != template_text for _ in range(NUM_REPEATS)):
        quirks["chance"] = "the chat template writes a different prompt each time, so a resumed run has other prompts"
    elif template_text != apply_template(
        tokenizer, prompt, date=TEMPLATE_DATE + timedelta(days=400, hours=5, minutes=7, seconds=9)
    ):
        remedy = f"it is {TEMPLATE_DATE:%d %b %Y} in every prompt, so that a resumed run has the same"
        quirks["time"] = f"the chat template writes the date: {remedy}"
    return quirks
