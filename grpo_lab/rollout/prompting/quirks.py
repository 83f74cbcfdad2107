"""Quirks of a tokenizer and its chat template, found on the prompts of a run before its first step.

`templates.py` and `rollout/completion_texts.py` repair most quirks, and a line describes each. A template that leaves
out the question is an error.
"""

from collections.abc import Iterable
from datetime import timedelta

from grpo_lab.base.checks import InputError
from grpo_lab.rollout.completion_texts import opening_tag, tag_tokens, thought_prefix
from grpo_lab.rollout.prompting.prompts import encode_prompt
from grpo_lab.rollout.prompting.templates import (
    TEMPLATE_DATE,
    apply_template,
    contains,
    loses_system,
    loses_thoughts,
    render_prompt,
)

MAX_EXAMINED_PROMPTS = 8  # the first prompt of each order of roles is examined
NUM_REPEATS = 4  # number of times that a prompt is rendered again, to find a template that draws random numbers
# The quirks that are repaired in the prompts, and that an engine which renders prompts itself would not repair.
PROMPT_QUIRKS = ("system", "thoughts", "appended_eos")


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
    for prompt in _one_per_role_order(prompts):
        find_quirks = _text_quirks if isinstance(prompt, str) else _chat_quirks
        quirks = find_quirks(tokenizer, prompt) | quirks
        text = render_prompt(tokenizer, prompt).rstrip()
        if end_token := next(filter(text.endswith, end_tokens), None):
            subject = (
                "the prompt" if isinstance(prompt, str) else "the chat template opens no turn of its own: the prompt"
            )
            line = f"{subject} ends with the end token {end_token!r}, after which the model goes on"
            quirks = {"ends_with_eos": line} | quirks
        if prefix := thought_prefix(tokenizer, encode_prompt(tokenizer, prompt)):
            subject = "the prompt" if isinstance(prompt, str) else "the chat template"
            closing = " and closes it at once" if "/" in prefix else ""
            tag = opening_tag(prefix)
            line = f"{subject} opens {tag} itself{closing}: the text that the rewards see begins with this tag"
            quirks = {"opened": line} | quirks
    return quirks


def _one_per_role_order(prompts: Iterable) -> list:
    first_by_roles: dict[tuple, object] = {}
    for prompt in prompts:
        roles = () if isinstance(prompt, str) else tuple(message.get("role") for message in prompt)
        if roles not in first_by_roles and len(first_by_roles) < MAX_EXAMINED_PROMPTS:
            first_by_roles[roles] = prompt
    return [*first_by_roles.values()]


def _text_quirks(tokenizer, prompt: str) -> dict[str, str]:
    complete_ids = tokenizer(prompt, add_special_tokens=True, verbose=False)["input_ids"]
    prompt_ids = encode_prompt(tokenizer, prompt)
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
