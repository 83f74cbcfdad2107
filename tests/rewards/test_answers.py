"""Rewards that compare numbers: what a number is, and where it may stand in a completion."""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_lab.rewards import last_number_reward, math_reward, number_reward, same_number
from grpo_lab.rewards.answers import LONGEST


def answered(text):
    return f"<think>so</think><answer>{text}</answer>"


def test_what_is_a_number():
    numbers = {"7": "7", "-0.5": "-1/2", "−0.5": "-1/2", "+.5": "1/2", "7.": "7", " 2/4 ": "1/2", "1,000": "1000",
               "１２": "12", "5/10": "1/2", "1/007": "1/7"}  # fmt: skip
    assert [text for text, number in numbers.items() if not same_number(text, number)] == []


def test_what_is_no_number_is_equal_to_nothing():
    texts = ["", " ", ".", "-", "1/0", "1/00", "0/0", "1/-2", "1.5/2", "1e3", "1_000", "10²", "1,00", "4 or 5", "x=4",
             "五", "inf", "nan", "1\n2", "9" * (LONGEST + 1)]  # fmt: skip
    for text in texts:
        assert not same_number(text, text) and not same_number(text, "4") and not same_number("4", text), text


fractions = st.fractions(max_denominator=1000)


@given(fractions, fractions, st.integers(1, 50))
def test_equal_exactly_if_the_fractions_are(a, b, factor):
    written = f"{a.numerator * factor}/{a.denominator * factor}"
    assert same_number(written, str(a))
    assert same_number(written, str(b)) == same_number(str(b), written) == (a == b)


@settings(max_examples=40, deadline=None)
@given(st.integers(-99, 99), st.sampled_from([1, 2, 4, 5, 8, 10, 20]), st.integers(-99, 99))
def test_agrees_with_math_reward_where_both_can_read(top, bottom, other):
    decimal, fraction = str(Decimal(top) / bottom), f"{top}/{bottom}"
    completions, answer = [answered(decimal), answered(fraction)], [fraction, f"{other}/{bottom}"]
    assert number_reward(completions, answer=answer) == math_reward(completions, answer, time_limit=60.0)


def test_number_reward_looks_at_the_last_answer_block_alone():
    texts = [answered("0.50"), "<answer>3</answer> <answer>1/2</answer>", "1/2", answered(""), answered("0.5 cm")]
    assert number_reward(texts, answer=["1/2"] * 5) == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert number_reward([[{"role": "assistant", "content": answered("7.0")}], "7"], answer=[7, None]) == [1.0, None]


@pytest.mark.parametrize("reward", [number_reward, last_number_reward])
def test_an_expected_text_that_is_no_number_is_named(reward):
    with pytest.raises(ValueError, match=rf"{reward.__name__}: answer\[1\] is 'many'; expected a number"):
        reward(["1", "2"], answer=["1", "many"])


def test_the_last_number_as_it_stands_there():
    last = {"17": "17", "17 + 25 = 42.": "42", "It is 42, I think.": "42", "17+25=42!": "42", "first 42, then 7": "7",
            "1,000": "1000", "1,2": "2", "about .5": ".5", "is it -3 or x-3?": "-3", "it is -3": "-3", "−3": "-3",
            "20-3": "3", "20 - 3": "3", "(4) -3": "3", "x2": "2", "step 2) 42\n": "42", "is 042.0": "42"}  # fmt: skip
    assert last_number_reward(list(last), answer=list(last.values())) == [1.0] * len(last)
    wrong = {"none at all": "0", "": "0", "٣": "3", "20-3": "-3", " ".join(map(str, range(41))): "12"}
    assert last_number_reward([*wrong, "42"], answer=[*wrong.values(), None]) == [0.0] * len(wrong) + [None]


def test_long_texts_take_no_time():
    texts = ["1," * 50_000, "<answer>" + "a" * 50_000 + "</answer>", "-" * 50_000]
    assert last_number_reward(texts, answer=["5"] * 3) == number_reward(texts, answer=["5"] * 3) == [0.0] * 3
