"""What a tokenizer and its chat template make of a run's prompts and completions, looked at before the first step.

What can be mended is (`templates.py`, `tags.py`), and a line says so; a run that could only go wrong is refused.
"""

from collections.abc import Iterable
from datetime import timedelta

from grpo_lab.base.checks import InputError
from grpo_lab.rollout.prompting.prompts import encode_prompt
from grpo_lab.rollout.prompting.tags import opening_tag, tag_tokens, thought_prefix
from grpo_lab.rollout.prompting.templates import (
    TEMPLATE_DATE,
    apply_template,
    contains,
    loses_system,
    loses_thoughts,
    render_prompt,
)

KINDS_OF_PROMPTS = 8  # looked at: the first prompt of each order of roles
# Habits that an engine which makes its own prompts would get wrong.
PROMPT_HABITS = ("system", "thoughts", "appended_eos")


def probe(tokenizer, prompts: Iterable, eos_token_ids: Iterable[int] = ()) -> dict[str, str]:
    """A line on each habit of a tokenizer and its template that a run has to know, by the habit's name.

    Raises:
        InputError: where the template leaves out the question.
    """
    habits: dict[str, str] = {}
    if tags := tag_tokens(tokenizer, eos_token_ids):
        names = ", ".join(tags.values())
        habits["tags"] = f"{names} are special tokens of this tokenizer: they stay in what the rewards see"
    ends = [*filter(None, tokenizer.convert_ids_to_tokens([*eos_token_ids]))]
    for prompt in _kinds(prompts):
        habits_of_form = _text_habits if isinstance(prompt, str) else _chat_habits
        habits = habits_of_form(tokenizer, prompt) | habits
        if end := next((end for end in ends if render_prompt(tokenizer, prompt).rstrip().endswith(end)), None):
            where = (
                "the prompt" if isinstance(prompt, str) else "the chat template opens no turn of its own: the prompt"
            )
            line = f"{where} ends with the end token {end!r}, after which the model goes on"
            habits = {"ends_with_eos": line} | habits
        if prefix := thought_prefix(tokenizer, encode_prompt(tokenizer, prompt)):
            where = "the prompt" if isinstance(prompt, str) else "the chat template"
            end = " and closes it at once" if "/" in prefix else ""
            line = f"{where} opens {opening_tag(prefix)} itself{end}: what the rewards see of a completion begins so"
            habits = {"opened": line} | habits
    return habits


def _kinds(prompts: Iterable) -> list:
    first: dict[tuple, object] = {}
    for prompt in prompts:
        roles = () if isinstance(prompt, str) else tuple(message.get("role") for message in prompt)
        if roles not in first and len(first) < KINDS_OF_PROMPTS:
            first[roles] = prompt
    return [*first.values()]


def _text_habits(tokenizer, prompt: str) -> dict[str, str]:
    complete_ids = tokenizer(prompt, add_special_tokens=True, verbose=False)["input_ids"]
    prompt_ids = encode_prompt(tokenizer, prompt)
    if len(complete_ids) == len(prompt_ids):
        return {}
    appended = tokenizer.decode(complete_ids[len(prompt_ids) :], skip_special_tokens=False)
    return {"appended_eos": f"the tokenizer appends {appended!r} to a text: it is left out of the prompts"}


def _chat_habits(tokenizer, prompt: list[dict]) -> dict[str, str]:
    habits = {}
    bare = apply_template(tokenizer, prompt)
    text = render_prompt(tokenizer, prompt)
    questions = [message["content"] for message in prompt if message["role"] == "user"]
    if questions and not any(word in text for word in questions[-1].split()):
        problem = f"leaves out what the user says, {questions[-1]!r:.60}"
        raise InputError("chat_template", None, "expected one that writes every message", found=problem)
    if loses_system(prompt, bare):
        is_mended = not loses_system(prompt, text)
        remedy = "it stands before the first question" if is_mended else "the model does not get it"
        habits["system"] = f"the chat template drops the system message: {remedy}"
    if loses_thoughts(prompt, bare):
        remedy = "they are kept in the prompts" if not loses_thoughts(prompt, text) else "the model does not get them"
        habits["thoughts"] = f"the chat template strips the thoughts of earlier answers: {remedy}"
    contents = [m["content"] for m in prompt if m["role"] != "system" and "<think>" not in m["content"]]
    if lost := next((content for content in contents if not contains(text, content)), None):
        habits["message"] = f"the chat template changes or drops a message, {lost!r:.60}"
    if any(apply_template(tokenizer, prompt) != bare for _ in range(4)):
        habits["chance"] = "the chat template writes another prompt each time: a resumed run has others"
    elif bare != apply_template(
        tokenizer, prompt, date=TEMPLATE_DATE + timedelta(days=400, hours=5, minutes=7, seconds=9)
    ):
        remedy = f"it is {TEMPLATE_DATE:%d %b %Y} in every prompt, so that a resumed run has the same"
        habits["time"] = f"the chat template writes the date: {remedy}"
    return habits
