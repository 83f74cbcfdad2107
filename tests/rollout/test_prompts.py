"""Prompts as text and as token ids, what chat templates and tokenizers change, and the checks of many prompts."""

import copy

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig

from grpo_lab.base.checks import InputError
from grpo_lab.models import load_policy
from grpo_lab.rollout import encode_prompts, pad_token_id
from grpo_lab.rollout.environments.tools import ToolEnvironment
from grpo_lab.rollout.prompts import (
    apply_template,
    apply_template_together,
    check_prompts,
    find_prompt_quirks,
    longest_prompt,
    prompt_token_ids,
    render_prompt,
)
from tests.support.sampling import logprobs_of, sample
from tests.support.small_policy import make_policy, make_tokenizer
from tests.support.templates import CHAT, OPEN, PLAIN, with_template
from tests.support.tool_policy import add, make_tool_policy

MESSAGE = {"role": "user", "content": "a"}
# What the templates of models contain: variables, replaced messages, macros, removed white space, a line break at the
# end, errors for messages that they do not take, a clock.
TEMPLATES = {
    "plain": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
    "sets": "{% set ns = namespace(n=0) %}{% if messages[0]['role'] == 'system' %}"
    "{% set system = messages[0]['content'] %}{% set messages = messages[1:] %}{% else %}{% set system = 'none' %}"
    "{% endif %}\n  {{ eos_token }}[{{ system }}]\n{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{{ ns.n }}{{ m['content'] | trim }}{{ loop.index0 }}{% endfor %}\n",
    "macro": "{%- macro turn(m) -%}<{{ m.role }}>{{ m.content }}{%- endmacro %}\n\n"
    "  {%- for m in messages %}\n    {{- turn(m) }}\n  {%- endfor %}\n"
    "{% if add_generation_prompt %}<go>{% endif %}\n\n",
    "strict": "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}",
    "clock": "  {% set date = strftime_now('%d %b %Y') %}\n{{ date }} "
    "{% for m in messages %}{{ m.content }}{% endfor -%}\n ",
    "tools": "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}",
}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
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


def test_messages_go_through_the_chat_template_and_strings_do_not():
    tokenizer = make_tokenizer()
    messages = [{"role": "user", "content": "1+1=?"}]
    ids, mask = encode_prompts(tokenizer, [messages, "1+1=?"])
    templated = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(ids[0]) == templated and mask[0].all()
    bare = tokenizer("1+1=?")["input_ids"]
    assert ids[1].tolist() == [pad_token_id(tokenizer)] * (ids.shape[1] - len(bare)) + bare
    assert mask[1].tolist() == [False] * (ids.shape[1] - len(bare)) + [True] * len(bare)


def test_the_longest_prompt_is_the_longest_of_the_first_ones(monkeypatch):
    tokenizer = make_tokenizer()
    rows = [{"prompt": "1+"}, {"prompt": "1+1=?"}, {"prompt": "1+1+1+1=?"}]
    assert longest_prompt(tokenizer, rows) == encode_prompts(tokenizer, ["1+1+1+1=?"]).ids.shape[1]
    monkeypatch.setattr("grpo_lab.rollout.prompts.MAX_MEASURED_PROMPTS", 2)
    assert longest_prompt(tokenizer, rows) == encode_prompts(tokenizer, ["1+1=?"]).ids.shape[1]


def test_the_longest_prompt_has_the_schemas_of_the_tools():
    tokenizer = make_tool_policy()[1]
    rows, schemas = [{"prompt": [{"role": "user", "content": "1+2"}]}], ToolEnvironment([add]).schemas
    text = tokenizer.apply_chat_template(rows[0]["prompt"], schemas, add_generation_prompt=True, tokenize=False)
    assert "system add<|im_end|>" in text
    assert longest_prompt(tokenizer, rows, schemas) == len(tokenizer(text)["input_ids"])
    assert longest_prompt(tokenizer, rows) < longest_prompt(tokenizer, rows, schemas)


def test_a_tokenizer_without_a_padding_token_pads_with_the_end_token():
    model, tokenizer = make_policy()
    tokenizer.pad_token = None
    assert pad_token_id(tokenizer) == tokenizer.eos_token_id
    rollout = sample(model, tokenizer)
    logp, _ = logprobs_of(model, rollout)
    assert (logp - rollout.logp)[rollout.mask].abs().max() < 1e-4


def test_a_refusing_or_missing_chat_template_is_an_error_that_names_the_prompt():
    model, tokenizer = make_policy()
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ValueError, match=r"prompts\[1\] is refused by the tokenizer's chat template .*alternate"):
        sample(model, tokenizer, ["a", [MESSAGE]])
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match=r"prompts\[0\] goes to the model as chat messages, .* has no chat_template"):
        sample(model, tokenizer, [[MESSAGE]])
    assert sample(model, tokenizer, ["a"]).mask.any(), "strings need none"


def chat(text, system=None):
    return [
        *([{"role": "system", "content": system}] if system else []),
        {"role": "user", "content": text},
    ]


CHATS = [
    chat("a"),
    chat(" b \n"),
    chat("c\0", "Be brief."),
    chat("{{ d }}{% e %}"),
    chat("漢字\u2028é", "x" * 50),
    chat("f"),
]


@pytest.fixture(scope="module")
def tokenizer():
    return load_policy("tiny")[1]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["", "with tools"])
def test_apply_template_together_equals_rendering_one_by_one(name, tools, tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", TEMPLATES[name])
    chats = [prompt for prompt in CHATS if name != "strict" or len(prompt) == 1]
    assert apply_template_together(tokenizer, chats, tools) == [
        apply_template(tokenizer, prompt, tools=tools) for prompt in chats
    ]
    assert apply_template_together(tokenizer, chats[:1], tools) == [apply_template(tokenizer, chats[0], tools=tools)]


def test_apply_template_together_gives_none_for_prompts_that_need_their_own_rendering(tokenizer, monkeypatch):
    assert apply_template_together(tokenizer, [chat("a\0\1b"), chat("c")]) == [None] * 2, "the mark between two of them"
    monkeypatch.setattr(tokenizer, "chat_template", TEMPLATES["strict"])
    assert apply_template_together(tokenizer, CHATS) == [None] * len(CHATS), "one of them is refused"
    monkeypatch.setattr(tokenizer, "chat_template", "{{ 'in a loop' if all_messages else messages[0].content }}")
    assert apply_template_together(tokenizer, CHATS) == [None] * len(CHATS), "it is another text within a loop"


def checked(prompts, tokenizer, room=100):
    """The error of the check, or None. The context has `room` tokens, of which a completion takes 10."""
    config = AutoConfig.for_model("qwen2", max_position_embeddings=room)
    try:
        check_prompts(config, tokenizer, iter(prompts), 10)
    except ValueError as error:
        return str(error)
    return None


LONG, REFUSED, WRONG = chat("1+" * 200), chat("a", "system"), [{"role": "user"}]


@pytest.mark.parametrize("bad", [LONG, REFUSED, WRONG, "", "9" * 200, 7, []])
@pytest.mark.parametrize("bad_index", [0, 1, 6, 7, 20])
def test_the_refused_prompt_is_the_same_for_any_number_rendered_together(bad, bad_index, tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", TEMPLATES["strict"])
    prompts = [chat("1+1=?"), "2+2=?", chat("3+3=?")] * 7
    assert checked(prompts, tokenizer) is None
    prompts[bad_index] = bad
    messages = set()
    for number in (1, 2, 7, 1000):
        monkeypatch.setattr("grpo_lab.rollout.prompts.RENDERED_AT_ONCE", number)
        messages.add(checked(prompts, tokenizer))
    (message,) = messages
    assert f"dataset row {bad_index}: " in message


def test_prompt_length_counts_a_system_message_that_the_template_drops(tokenizer, monkeypatch):
    drops = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    monkeypatch.setattr(tokenizer, "chat_template", drops)
    prompts = [chat("1+1=?")] * 3 + [chat("2+2=?", "1+" * 100)]
    assert "dataset row 3: prompt has" in checked(prompts, tokenizer)


def test_check_prompts_renders_thousands_of_prompts_per_call(tokenizer, monkeypatch):
    calls = record_calls(monkeypatch, tokenizer, "apply_chat_template")
    assert checked([chat(f"{n}+1=?") for n in range(5000)], tokenizer, room=1000) is None
    assert len(calls) <= 3 * 5, "once with all of a thousand, and two of them to compare"


def test_a_prompt_may_fill_the_context_to_the_last_token():
    rollout = sample(*make_policy(), ["a", "b" * 121], length=7)
    assert rollout.prompt_mask.sum(-1).tolist() == [1, 121], "padding takes no place in it"


def test_all_prompts_of_a_run_are_checked_and_the_clearly_short_ones_not_encoded(monkeypatch):
    model, tokenizer = make_policy(max_position_embeddings=5000)
    encoded = record_calls(monkeypatch, tokenizer, "__call__")
    check_prompts(model.config, tokenizer, ["a" * 100, chat("a"), "b" * 4000], 1000)
    assert encoded == ["b" * 4000]
    with pytest.raises(TypeError, match=r"^eval_dataset row 1: prompt\[0\]\['role'\] is missing; expected"):
        check_prompts(model.config, tokenizer, ["a", [{"content": "b"}]], 1000, "eval_dataset")


def test_among_thousands_of_chats_only_the_long_ones_are_encoded_and_none_is_rendered_again(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", TEMPLATES["strict"])
    chats = [chat(f"{n}+1=?") for n in range(2000)]
    chats[7], chats[1500] = chat("system " * 14), chat("system " * 15)
    encoded, rendered = (record_calls(monkeypatch, tokenizer, name) for name in ("__call__", "apply_chat_template"))
    assert checked(chats, tokenizer) is None
    assert encoded == ["system " * 14, "system " * 15]
    assert len(rendered) == 2 * 3, "once with all of a thousand, and two of them to compare"
    chats[1999] = chat("a", "system")
    assert "dataset row 1999: prompt is refused" in checked(chats, tokenizer)
    assert len(encoded) == 4, "those that are rendered one by one are not encoded either"


def record_calls(monkeypatch, tokenizer, method: str) -> list:
    """Record the first argument of each call of a tokenizer's method; return the list of them."""
    arguments, original = [], getattr(type(tokenizer), method)
    monkeypatch.setattr(
        type(tokenizer), method, lambda self, *a, **k: arguments.append(a[0]) or original(self, *a, **k)
    )
    return arguments


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


def test_render_prompt_keeps_the_characters_that_stand_for_hidden_tags_where_none_is_hidden(tiny):
    text = render_prompt(with_template(tiny, PLAIN), chat("a\ue001b\ue002"))
    assert "a\ue001b\ue002" in text and "think>" not in text


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
    ids = prompt_token_ids(tokenizer, "2+2=?")
    assert ids[APPENDING[form] :] == bare and len(ids) == len(bare) + APPENDING[form]
    assert ("appended_eos" in find_prompt_quirks(tokenizer, ["2+2=?"])) == (not form.endswith("$A"))
    assert prompt_token_ids(tokenizer, "2+2=?<|im_end|>")[APPENDING[form] :] == [*bare, special[0][1]], (
        "it was asked for"
    )
