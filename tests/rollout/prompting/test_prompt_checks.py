"""Prompts that are rendered and checked many at once equal the same prompts one by one; the limit of the context."""

import pytest
from transformers import AutoConfig

from grpo_lab.models import load_policy
from grpo_lab.rollout.prompting import prompt_checks
from grpo_lab.rollout.prompting.prompt_checks import check_prompts
from grpo_lab.rollout.prompting.templates import apply_template, apply_template_together
from tests.support.sampling import sample
from tests.support.small_policy import make_policy

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
    assert apply_template_together(tokenizer, [chat("a\0\1b"), chat("c")]) is None, "the mark between two of them"
    monkeypatch.setattr(tokenizer, "chat_template", TEMPLATES["strict"])
    assert apply_template_together(tokenizer, CHATS) is None, "one of them is refused"
    monkeypatch.setattr(tokenizer, "chat_template", "{{ 'in a loop' if all_messages else messages[0].content }}")
    assert apply_template_together(tokenizer, CHATS) is None, "it is another text within a loop"


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
        monkeypatch.setattr(prompt_checks, "RENDERED_AT_ONCE", number)
        messages.add(checked(prompts, tokenizer))
    (message,) = messages
    assert f"dataset row {bad_index}: " in message


def test_prompt_length_counts_a_system_message_that_the_template_drops(tokenizer, monkeypatch):
    drops = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    monkeypatch.setattr(tokenizer, "chat_template", drops)
    prompts = [chat("1+1=?")] * 3 + [chat("2+2=?", "1+" * 100)]
    assert "dataset row 3: prompt has" in checked(prompts, tokenizer)


def test_check_prompts_renders_thousands_of_prompts_per_call(tokenizer, monkeypatch):
    calls = []
    render = tokenizer.apply_chat_template
    monkeypatch.setattr(
        type(tokenizer), "apply_chat_template", lambda self, *a, **k: calls.append(1) or render(*a, **k)
    )
    assert checked([chat(f"{n}+1=?") for n in range(5000)], tokenizer, room=1000) is None
    assert len(calls) <= 3 * 5, "once with all of a thousand, and two of them to compare"


def test_a_prompt_may_fill_the_context_to_the_last_token():
    rollout = sample(*make_policy(), ["a", "b" * 121], length=7)
    assert rollout.prompt_mask.sum(-1).tolist() == [1, 121], "padding takes no place in it"


def test_all_prompts_of_a_run_are_checked_and_the_clearly_short_ones_not_encoded(monkeypatch):
    model, tokenizer = make_policy(max_position_embeddings=5000)
    encoded = []
    counted = lambda _, prompt, tools=None: encoded.append(prompt) or [0] * 4000  # noqa: E731
    monkeypatch.setattr(prompt_checks, "encode_prompt", counted)
    check_prompts(model.config, tokenizer, ["a" * 100, chat("a"), "b" * 4000], 1000)
    assert encoded == ["b" * 4000]
    with pytest.raises(TypeError, match=r"^eval_dataset row 1: prompt\[0\]\['role'\] is missing; expected"):
        check_prompts(model.config, tokenizer, ["a", [{"content": "b"}]], 1000, "eval_dataset")
