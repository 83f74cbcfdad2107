"""Equality of numbers: by hand, by properties, and against Math-Verify."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_lab.rewards import math_reward, number_reward, same_number
from grpo_lab.rewards.exact import LONGEST, _number_in


def answered(text):
    return f"<think>so</think><answer>{text}</answer>"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", Fraction(7)),
        ("-0.5", Fraction(-1, 2)),
        ("−0.5", Fraction(-1, 2)),
        ("+.5", Fraction(1, 2)),
        ("7.", Fraction(7)),
        (" 2/4 ", Fraction(1, 2)),
        ("1,000", Fraction(1000)),
        ("１２", Fraction(12)),
        ("5/10", Fraction(1, 2)),
        ("1/007", Fraction(1, 7)),
    ],
)
def test_what_is_a_number(text, number):
    assert _number_in(text) == number


@pytest.mark.parametrize(
    "text",
    ["", " ", ".", "-", "1/0", "1/00", "0/0", "1/-2", "1.5/2", "1e3", "1_000", "10²", "1,00", "4 or 5", "x=4", "五",
     "inf", "nan", "1\n2", "9" * (LONGEST + 1)],
)  # fmt: skip
def test_what_is_no_number_is_equal_to_nothing(text):
    assert _number_in(text) is None
    assert not same_number(text, text) and not same_number(text, "4") and not same_number("4", text)


fractions = st.fractions(max_denominator=1000)


@given(fractions, fractions, st.integers(1, 50))
def test_equal_exactly_if_the_fractions_are(a, b, factor):
    written = f"{a.numerator * factor}/{a.denominator * factor}"
    assert same_number(written, str(a))
    assert same_number(written, str(b)) == same_number(str(b), written) == (a == b)


@given(st.decimals(-10_000, 10_000, places=3))
def test_decimals_are_read_exactly(number: Decimal):
    assert same_number(f"{number:f}", str(Fraction(number)))
    assert not same_number(f"{number:f}", str(Fraction(number) + Fraction(1, 10**30)))


@settings(max_examples=40, deadline=None)
@given(st.integers(-99, 99), st.sampled_from([1, 2, 4, 5, 8, 10, 20]), st.integers(-99, 99))
def test_agrees_with_math_verify_where_both_can_read(top, bottom, other):
    decimal, fraction = str(Decimal(top) / bottom), f"{top}/{bottom}"
    completions, answer = [answered(decimal), answered(fraction)], [fraction, f"{other}/{bottom}"]
    assert number_reward(completions, answer=answer) == math_reward(completions, answer, time_limit=60.0)


def test_reward_looks_at_the_last_answer_block_alone():
    texts = [answered("0.50"), "<answer>3</answer> <answer>1/2</answer>", "1/2", answered(""), answered("0.5 cm")]
    assert number_reward(texts, answer=["1/2"] * 5) == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert number_reward([[{"role": "assistant", "content": answered("7.0")}], "7"], answer=[7, None]) == [1.0, None]


def test_an_expected_text_that_is_no_number_is_named():
    with pytest.raises(ValueError, match=r"number_reward: answer\[1\] is 'many'; expected a number"):
        number_reward(["1", "2"], answer=["1", "many"])
