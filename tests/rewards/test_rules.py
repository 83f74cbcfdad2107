"""Rewards by rule: the completions that earn them, and the completions that must not."""

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.rewards import (
    accuracy_reward,
    contains_reward,
    format_fault,
    format_reward,
    get_soft_overlong_punishment,
    graded_reward,
    math_reward,
    number_reward,
)
from grpo_lab.rewards.rules import FORMAT_PATTERN
from tests.support.agreement import many_examples

GOOD = "<think>17+58=75\n75+42=117</think>\n<answer>117</answer>"
pieces = st.lists(
    st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "12", "1,2", " ", "\n", "x", "12345"]), max_size=9
).map("".join)


def answered(text):
    return f"<think>so</think><answer>{text}</answer>"


FAULTS = {
    None: [GOOD, "\n <think>\n\na\n\nb</think>\n\n<answer>4\n</answer> \n", "<think></think><answer></answer>"],
    "missing tag": ["117", "", "<answer>117</answer>", "<think>a</think>117", "<think>a<answer>117</answer>",
                    "<think>a</think><answer>117"],
    "repeated tag": ["<think>a</think><think>b</think><answer>7</answer>", "<think><think>a</think><answer>1</answer>",
                     "<think>a</think><answer>1</answer><answer>2</answer>"],
    "wrong order": ["<answer>117</answer><think>a</think>", "<think>a<answer>117</answer></think>",
                    "</think>a<think><answer>117</answer>"],
    "text outside": [GOOD + "!", "Well. " + GOOD, "<think>a</think> so <answer>117</answer>"],
}  # fmt: skip


def test_format_reward_detects_the_four_faults_of_the_format():
    for fault, texts in FAULTS.items():
        assert {text: format_fault(text) for text in texts} == dict.fromkeys(texts, fault)
        assert format_reward(texts) == [float(fault is None)] * len(texts)


tags_in_order = st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>"]), max_size=3)
fillings = st.lists(st.sampled_from(["", "", "a\nb", " \n", "<", "</", "<think", "x>", "ö"]), min_size=8, max_size=8)


@many_examples
@given(tags_in_order, st.integers(0, 4), fillings)
def test_pattern_and_faults_agree_near_the_format(extra, insert_index, between):
    tags = ["<think>", "</think>", "<answer>", "</answer>"]
    tags[insert_index:insert_index] = extra
    text = "".join(piece for pair in zip(between, [*tags, ""], strict=False) for piece in pair)
    assert (format_fault(text) is None) == bool(FORMAT_PATTERN.fullmatch(text))


# Accuracy, containment, grades


def test_accuracy_reward_compares_answer_texts():
    right = [("117", "117"), (" 117\n", "117"), ("１１７", "117"), ("1,234", "1234"), ("1234", "1,234"), ("117", 117)]
    wrong = [("118", "117"), ("0.5", "1/2"), ("", ""), ("", "117"), (" ", " "), ("117", ""), ("1,17", "117"),
             ("10²", "102")]  # fmt: skip
    given_answers, expected = zip(*right, *wrong, ("117", None), strict=True)
    rewards = accuracy_reward([answered(text) for text in given_answers], answer=list(expected))
    assert rewards == [1.0] * len(right) + [0.0] * len(wrong) + [None]
    texts = ["117", "<think>117</think>", "<answer>117", answered("117") + answered("1"), answered("1") + GOOD]
    assert accuracy_reward(texts, answer=["117"] * 5) == [0.0] * 4 + [1.0]


def test_an_answer_within_the_thinking_counts_as_a_text_and_not_as_a_number():
    texts = ["<think>maybe <answer>4</answer> no wait", "<think>x <answer>4</answer></think> I do not know"]
    for reward in (accuracy_reward, graded_reward):
        assert reward(texts, answer=["4"] * 2) == [1.0] * 2
    for reward in (number_reward, math_reward):
        assert reward(texts, answer=["4"] * 2) == [0.0] * 2


@many_examples
@given(pieces)
def test_rewards_match_nothing_with_an_empty_answer(text):
    for empty in ("", " ", "\n"):
        assert accuracy_reward([text], answer=[empty]) == [0.0]
        assert graded_reward([text], answer=[empty]) == [0.01]
        assert contains_reward([text], answer=[empty]) == [-1 - 0.002 * len(text)]


def test_contains_reward_values_and_penalty_per_character():
    texts = ["czq是神!", "不知道", "4", "The answer is 1,234, I think"]
    rewards = contains_reward(texts, answer=["czq是神！", "czq是神！", "4", "1234"])
    assert rewards == pytest.approx([1 - 0.012, -1 - 0.006, 1 - 0.002, 1 - 0.056])
    free = functools.partial(contains_reward, penalty_per_character=0.0)
    assert free(texts, answer=[texts[0], None, "5", 9]) == [1.0, None, -1.0, -1.0]


def test_graded_reward_values_and_how_it_is_hacked():
    texts = [answered("117"), answered("It is 117."), answered("118"), answered(""), "117"]
    assert graded_reward(texts, answer=["117"] * 5) == [1.0, 0.5, 0.01, 0.01, 0.01]
    every_number = answered(" ".join(map(str, range(1000))))
    problems = ["117", "5", "999"]
    assert graded_reward([every_number] * 3, answer=problems) == [0.5] * 3
    assert accuracy_reward([every_number] * 3, answer=problems) == [0.0] * 3
    assert graded_reward([answered("312")], answer=["12"]) == [0.5]


WRONG = [
    (["1"], ValueError, r"answer has 1 entries; expected one entry for each of 2 completions"),
    ("12", ValueError, r"answer is str '12'; expected one entry for each of 2 completions"),
    (None, ValueError, r"answer is NoneType None; expected one entry"),
    (["1", 0.5], TypeError, r"answer\[1\] is float 0.5; expected a str, an int or None"),
    (["1", True], TypeError, r"answer\[1\]"),
]


@pytest.mark.parametrize("reward", [accuracy_reward, contains_reward, graded_reward, math_reward, number_reward])
def test_a_wrong_answer_column_is_named(reward):
    for answer, error, words in WRONG:
        with pytest.raises(error, match=rf"{reward.__name__}: {words}"):
            reward(["1", "2"], answer=answer)


def test_overlong_penalty_is_that_of_the_paper_and_of_trl():
    from trl.rewards import get_soft_overlong_punishment as trl_overlong_punishment

    def literal(length, limit, cache):
        if length <= limit - cache:
            return 0.0
        return ((limit - cache) - length) / cache if length <= limit else -1.0

    for limit, cache in ((20, 5), (20, 20), (7, 1)):
        ids = [[0] * length for length in range(limit + 4)]
        rewards = get_soft_overlong_punishment(limit, cache)(completion_ids=ids, completions=[""] * len(ids))
        assert rewards == pytest.approx([literal(len(completion_ids), limit, cache) for completion_ids in ids])
        assert rewards == pytest.approx(trl_overlong_punishment(limit, cache)(completion_ids=ids))
    for sizes, name in (((5, 0), "soft_punish_cache"), ((5, 6), "max_completion_len")):
        with pytest.raises(ValueError, match=name):
            get_soft_overlong_punishment(*sizes)
