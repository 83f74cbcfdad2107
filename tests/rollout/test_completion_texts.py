"""The text of a completion for the rewards: tags that are special tokens, and a thought that the prompt opens."""

import copy

import pytest
import torch
from tokenizers import AddedToken

from grpo_lab.rewards import format_reward, math_reward
from grpo_lab.rollout import sample_completions
from grpo_lab.rollout.completion_texts import (
    TagKeepingTokenizer,
    tag_tokens,
    thought_prefix,
    with_thought_prefix,
)
from tests.support.small_policy import make_model, make_tokenizer
from tests.support.templates import CHAT, PLAIN, with_template

TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def tagging_tokenizer(*tags, special=True):
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([AddedToken(tag, special=special, normalized=False) for tag in tags], special_tokens=special)
    return tokenizer


def ids_of(tokenizer, *pieces) -> list[int]:
    return [tokenizer.convert_tokens_to_ids(piece) for piece in pieces]


@pytest.mark.parametrize("special", [True, False])
def test_tags_stay_whether_they_are_special_tokens_or_not(special):
    tokenizer = tagging_tokenizer(*TAGS, special=special)
    ids = ids_of(tokenizer, "<think>", "2", "+", "2", "</think>", "<answer>", "3", "</answer>", "<|im_end|>")
    tag_keeping_tokenizer = TagKeepingTokenizer(tokenizer, [tokenizer.eos_token_id])
    assert set(tag_keeping_tokenizer.tags.values()) == (set(TAGS) if special else set())
    text = tag_keeping_tokenizer.decode(ids, skip_special_tokens=True)
    assert text == "<think>2+2</think><answer>3</answer>"
    assert tag_keeping_tokenizer.decode(torch.tensor(ids), skip_special_tokens=True) == text
    assert tag_keeping_tokenizer.decode(ids) == tokenizer.decode(ids), "only `skip_special_tokens` is changed"
    assert format_reward([text]) == [1.0]
    assert math_reward([text], answer=["3"]) == [1.0]


def test_tag_tokens_leave_out_tokens_that_frame_a_text():
    tokenizer = tagging_tokenizer("<s>", "</s>", "<reasoning>", "</reasoning>", "<start_of_turn>", "<|tool|>")
    tokenizer.bos_token, tokenizer.eos_token = "<s>", "</s>"
    assert [*tag_tokens(tokenizer).values()] == ["<reasoning>", "</reasoning>"]
    pair = tagging_tokenizer("<turn>", "</turn>")
    ends = pair.convert_tokens_to_ids(["</turn>"])
    assert [*tag_tokens(pair, ends).values()] == ["<turn>"]


def test_tag_tokens_find_other_spellings_of_a_pair():
    for tags in (("[THINK]", "[/THINK]"), ("◁think▷", "◁/think▷"), ("<seed:think>", "</seed:think>")):
        assert (*tag_tokens(tagging_tokenizer(*tags)).values(),) == tags
    for foreign_tags in (("[INST]", "[/INST]"), ("◁think▷", "</think>"), ("<|begin|>", "<|/begin|>")):
        assert tag_tokens(tagging_tokenizer(*foreign_tags)) == {}


OPENED = [
    "<think>",
    "<think>\n",
    "<think>\n\n</think>\n\n",
    "<reasoning>\n",
    "[THINK]",
    "<Think>so.</Think>",
    "",
]


@pytest.mark.parametrize("opened", OPENED)
def test_texts_for_rewards_begin_with_a_thought_tag_that_the_template_opens(tiny, opened):
    tokenizer = with_template(tiny, PLAIN + "{{ " + repr(opened) + " }}")
    rollout = sample_completions(tiny[0], tokenizer, [CHAT[-1:], "2+2=?"], 2, 8)
    plain = [
        tokenizer.decode(ids[mask], skip_special_tokens=True)
        for ids, mask in zip(rollout.completion_ids, rollout.mask, strict=True)
    ]
    rows_begun = [
        text if opened and text.startswith("<think>") and "think" in opened else opened + text for text in plain[:2]
    ]
    assert rollout.texts == [*rows_begun, *plain[2:]], "a text that opens nothing gets nothing"


def test_an_opening_thought_tag_is_not_added_twice(tiny):
    assert with_thought_prefix("<think>so</think>", "<think>\n") == "<think>so</think>"
    assert with_thought_prefix("so</think>", "<think>\n") == "<think>\nso</think>"
    assert thought_prefix(tiny[1], tiny[1]("is <think> a tag?")["input_ids"]) == ""


def test_the_samples_of_a_model_whose_tags_are_special_tokens_show_them():
    tokenizer = tagging_tokenizer(*TAGS)
    model = make_model(tokenizer, scale=0.4)
    rollout = sample_completions(model, tokenizer, ["abc"], 32, 8)
    tags = ids_of(tokenizer, *TAGS)
    rows = zip(rollout.completion_ids.tolist(), rollout.mask.tolist(), rollout.texts, strict=True)
    counts = [
        (sum(index in tags for index, is_token in zip(ids, mask, strict=True) if is_token), sum(map(text.count, TAGS)))
        for ids, mask, text in rows
    ]
    assert any(count for count, _ in counts) and all(in_text == seen for in_text, seen in counts)
    assert not any("<|im" in text for text in rollout.texts)
    assert copy.deepcopy(rollout).texts == rollout.texts
