"""From chat messages to the text that the model reads, by the chat template of its tokenizer.

Some templates drop the system message, strip the thoughts of earlier answers, or write the date. Here the system
message and the thoughts are put back, so that the model gets all messages. The date is always the same, so that a
resumed run has the same prompts. `quirks.py` reports this before the first step.
"""

import json
import re
from datetime import datetime
from typing import Any

from grpo_lab.base.checks import InputError

TEMPLATE_DATE = datetime(2024, 7, 26)  # the date that Llama 3's template writes if it has no clock
_THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_END_OF_PROMPT = "\0\1"  # separates the texts of several prompts; if a text contains it, they are rendered one by one
_HIDDEN = {"<think>": "\ue001", "</think>": "\ue002"}  # private-use characters, which no template searches for


def render_prompt(tokenizer, prompt, name: str = "prompt", tools: list[dict] | None = None) -> str:
    """Return the text of a prompt: a string as it is, or messages by the chat template, with lost ones put back.

    Args:
        tokenizer: The tokenizer with the chat template.
        prompt: A string, or a list of messages.
        name: The name of the prompt in errors.
        tools: JSON schemas of the functions that the chat template describes to the model.
    """
    check_prompt(tokenizer, prompt, name)
    if isinstance(prompt, str):
        return prompt
    text = apply_template(tokenizer, prompt, name, tools=tools)
    if loses_thoughts(prompt, text):
        prompt = [_with_thoughts_hidden(message) for message in prompt]
        text = apply_template(tokenizer, prompt, name, tools=tools)
    if loses_system(prompt, text):
        text_with_system = apply_template(tokenizer, system_in_question(prompt), name, tools=tools)
        text = text if loses_system(prompt, text_with_system) else text_with_system
    for tag, hidden in _HIDDEN.items():
        text = text.replace(hidden, tag)
    return text


def check_prompt(tokenizer, prompt, name: str) -> None:
    """Raise ValueError unless the prompt is a string, or a list of messages for a tokenizer with a chat template."""
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
) -> str:
    """Return the text that the chat template writes for messages. A template that writes the date writes `date`."""
    arguments = _template_arguments(tokenizer, date, tools)
    try:
        return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **arguments)
    except Exception as error:  # templates raise errors of their own, such as that roles must alternate
        problem = f"is refused by the tokenizer's chat template ({type(error).__name__}: {error})"
        advice = "where it takes no system message, `--system_prompt none` leaves that out"
        raise InputError(name, messages, advice, problem=problem) from error


def _template_arguments(tokenizer, date: datetime, tools: list[dict] | None) -> dict[str, Any]:
    has_clock = "strftime_now" in str(tokenizer.chat_template)
    return ({"strftime_now": date.strftime} if has_clock else {}) | ({"tools": tools} if tools else {})


def apply_template_together(tokenizer, prompts: list[list[dict]], tools: list[dict] | None = None) -> list[str] | None:
    """Render several prompts by one call of the template inside a loop, which is five times as fast.

    Return None if this is impossible: the template refuses a prompt, or writes a different text inside a loop.
    """
    try:
        source = tokenizer.get_chat_template(tools=tools).removesuffix("\n")  # Jinja drops it, too
        loop = f"{{% for messages in all_messages %}}\n{source}{_END_OF_PROMPT}{{% endfor %}}"
        arguments = _template_arguments(tokenizer, TEMPLATE_DATE, tools)
        arguments |= {"chat_template": loop, "all_messages": prompts}
        text = tokenizer.apply_chat_template(prompts[0], add_generation_prompt=True, tokenize=False, **arguments)
        *texts, after_last = text.split(_END_OF_PROMPT)
        if after_last or len(texts) != len(prompts):
            return None
        first_and_last = (0, -1)
        is_same = all(apply_template(tokenizer, prompts[i], tools=tools) == texts[i] for i in first_and_last)
        return texts if is_same else None
    except Exception:  # templates raise errors of their own; rendering one by one will name the prompt
        return None


def loses_system(messages: list[dict], text: str) -> bool:
    """Return True if the text of a prompt lacks one of its system messages."""
    return any(message["role"] == "system" and not contains(text, message["content"]) for message in messages)


def loses_thoughts(messages: list[dict], text: str) -> bool:
    """Return True if the text of a prompt lacks a thought (<think>...</think>) of one of its earlier answers."""
    answers = (message["content"] for message in messages if message["role"] == "assistant")
    return any(not contains(text, thought) for answer in answers for thought in _THOUGHT.findall(answer))


def is_complete(messages: list[dict], text: str) -> bool:
    """Return True if the text of a prompt has all of its system messages and thoughts: nothing has to be put back."""
    return not loses_thoughts(messages, text) and not loses_system(messages, text)


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


def _with_thoughts_hidden(message: dict) -> dict:
    if message["role"] != "assistant":
        return message
    content = message["content"]
    for tag, hidden in _HIDDEN.items():
        content = content.replace(tag, hidden)
    return message | {"content": content}
