"""Prompts as token ids: the chat template, the padding, the longest prompt, and errors that name the prompt."""

import pytest

from grpo_lab.rollout import encode_prompts, pad_token_id
from grpo_lab.rollout.environments.tools import ToolEnvironment
from grpo_lab.rollout.prompting.prompts import longest_prompt
from tests.support.sampling import logprobs_of, sample
from tests.support.small_policy import make_policy, make_tokenizer
from tests.support.tool_policy import add, make_tool_policy

MESSAGE = {"role": "user", "content": "a"}


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
    monkeypatch.setattr("grpo_lab.rollout.prompting.prompts.MAX_MEASURED_PROMPTS", 2)
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
