"""Messages that chat templates lose are put back; tokens that tokenizers append to a text are left out."""

import copy

import pytest
from tokenizers.processors import TemplateProcessing

from grpo_lab.base.checks import InputError
from grpo_lab.rollout.prompting.prompts import encode_prompt
from grpo_lab.rollout.prompting.quirks import find_prompt_quirks
from grpo_lab.rollout.prompting.templates import render_prompt
from tests.support.templates import CHAT, OPEN, PLAIN, with_template

WITHOUT_SYSTEM = PLAIN.replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}")
FIRST_SYSTEM_GONE = PLAIN.replace(
    "{% for m in messages %}",
    "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}{% for m in rest %}",
)
THOUGHTS_GONE = PLAIN.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")
TRIMMED = PLAIN.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1].lstrip('\\n') | trim }}")
BOTH_GONE = THOUGHTS_GONE.replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}")
DATED = "Today is {{ strftime_now('%d %b %Y') }}. " + PLAIN
TIMED = PLAIN + "{{ strftime_now('%H:%M:%S') }}"
BY_CHANCE = PLAIN + "{{ range(1000) | random }}"
QUESTION_GONE = PLAIN.replace("{% for m in messages %}", "{% for m in messages if m.role != 'user' %}")
LAST_ONLY = PLAIN.replace("{% for m in messages %}", "{% for m in messages[-1:] %}")
AS_JSON = PLAIN.replace("{{ m.content }}", "{{ m.content | tojson }}")
SYSTEM_NOWHERE = "{% for m in messages %}{{ m.content.split('Think first.')[-1] }}{% endfor %}" + OPEN


@pytest.mark.parametrize("template", [WITHOUT_SYSTEM, FIRST_SYSTEM_GONE, THOUGHTS_GONE, TRIMMED, BOTH_GONE])
def test_no_message_is_lost_whatever_the_template_does(tiny, template):
    text = render_prompt(with_template(tiny, template), CHAT)
    assert all(part in text for part in ("Think first.", "<think>one and one</think>", "<answer>2</answer>", "2+2=?"))
    assert text.index("Think first.") < text.index("1+1=?") < text.index("one and one") < text.index("2+2=?")
    assert text.isascii(), "nothing that was hidden stays"


@pytest.mark.parametrize("template", [PLAIN, AS_JSON])
def test_render_prompt_equals_transformers_where_no_message_is_lost(tiny, template):
    tokenizer = with_template(tiny, template)
    assert render_prompt(tokenizer, CHAT) == tokenizer.apply_chat_template(
        CHAT, tokenize=False, add_generation_prompt=True
    )
    assert find_prompt_quirks(tokenizer, [CHAT, [CHAT[-1]]]) == {}


def test_a_template_with_the_date_renders_the_same_prompt_on_every_day(tiny):
    assert "Today is 26 Jul 2024." in render_prompt(with_template(tiny, DATED), CHAT)
    assert render_prompt(with_template(tiny, TIMED), CHAT).endswith("00:00:00")


@pytest.mark.parametrize(
    ("template", "quirks"),
    [
        (WITHOUT_SYSTEM, {"system": "drops the system message: it stands before the first question"}),
        (FIRST_SYSTEM_GONE, {"system": "drops the system message: it stands before"}),
        (SYSTEM_NOWHERE, {"system": "drops the system message: the model does not get it"}),
        (THOUGHTS_GONE, {"thoughts": "strips the thoughts of earlier answers: they are kept"}),
        (BOTH_GONE, {"system": "drops the system", "thoughts": "strips the thoughts"}),
        (DATED, {"time": "writes the date: it is 26 Jul 2024 in every prompt"}),
        (TIMED, {"time": "writes the date"}),
        (BY_CHANCE, {"chance": "writes a different prompt each time"}),
        (PLAIN + "[THINK]", {"opened": "the chat template opens [THINK] itself"}),
        (PLAIN + "◁think▷\n", {"opened": "the chat template opens ◁think▷ itself"}),
        (PLAIN + "<seed:think>", {"opened": "the chat template opens <seed:think> itself"}),
        (PLAIN + "<think>\nI have thought.\n</think>\n", {"opened": "opens <think> itself and closes it at once"}),
        (PLAIN + "<|im_end|>", {"ends_with_eos": "ends with the end token '<|im_end|>', after which"}),
        (PLAIN.replace(OPEN, ""), {"ends_with_eos": "opens no turn of its own: the prompt ends with the end token"}),
        (PLAIN + "<think>\n", {"opened": "the chat template opens <think> itself: the text that the rewards see"}),
        (PLAIN + "<think>\n\n</think>\n\n", {"opened": "opens <think> itself and closes it at once"}),
    ],
)
def test_prompt_quirks_describe_changes_by_the_template(tiny, template, quirks):
    tokenizer = with_template(tiny, template)
    quirks_found = find_prompt_quirks(tokenizer, [CHAT], [tokenizer.eos_token_id])
    assert quirks_found.keys() == quirks.keys()
    assert all(words in quirks_found[name] for name, words in quirks.items())


def test_a_template_may_drop_messages_but_not_the_question(tiny):
    assert "message" in find_prompt_quirks(with_template(tiny, LAST_ONLY), [CHAT])
    with pytest.raises(InputError, match=r"chat_template leaves out what the user says, '2\+2=\?'"):
        find_prompt_quirks(with_template(tiny, QUESTION_GONE), [CHAT])


APPENDING = {
    "$A <|im_end|>": 0, "$A <|endoftext|>": 0, "<|endoftext|> $A <|im_end|>": 1, "<|endoftext|> $A": 1, "$A": 0,
    "<|im_start|> $A <|endoftext|> <|im_end|>": 1,
}  # fmt: skip


@pytest.mark.parametrize("form", APPENDING)
def test_encode_prompts_leaves_out_tokens_that_a_tokenizer_appends(tiny, form):
    tokenizer = copy.deepcopy(tiny[1])
    bare = tokenizer("2+2=?")["input_ids"]
    names = ("<|im_end|>", "<|im_start|>", "<|endoftext|>")
    special = [(name, tokenizer.convert_tokens_to_ids(name)) for name in names]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=form, special_tokens=special)
    ids = encode_prompt(tokenizer, "2+2=?")
    assert ids[APPENDING[form] :] == bare and len(ids) == len(bare) + APPENDING[form]
    assert ("appended_eos" in find_prompt_quirks(tokenizer, ["2+2=?"])) == (not form.endswith("$A"))
    assert encode_prompt(tokenizer, "2+2=?<|im_end|>")[APPENDING[form] :] == [*bare, special[0][1]], "it was asked for"
