"""The last number of a text counts, and no other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.rewards import last_number_reward
from grpo_lab.rewards.last import last_number

READ = [
    ("17", "17"),
    ("17 + 25 = 42.", "42"),
    ("It is 42, I think.", "42"),
    ("17+25=42!", "42"),
    ("first 42, then 7", "7"),
    ("1,000", "1,000"),
    ("1,2", "2"),
    ("0.5", "0.5"),
    ("about .5", ".5"),
    ("is it -3 or x-3?", "-3"),
    ("-3", "-3"),
    ("it is -3", "-3"),
    ("\N{MINUS SIGN}3", "\N{MINUS SIGN}3"),
    ("20-3", "3"),
    ("20 - 3", "3"),
    ("(4) -3", "3"),
    ("x2", "2"),
    ("step 2) 42\n", "42"),
    ("none at all", ""),
    ("", ""),
    ("٣", ""),
]


@pytest.mark.parametrize("text, number", READ)
def test_the_last_number_as_it_stands_there(text, number):
    assert last_number(text) == number


def test_a_list_of_guesses_gains_nothing():
    guesses = " ".join(map(str, range(41)))
    assert last_number_reward([guesses] * 2, answer=["12", "40"]) == [0.0, 1.0]


def test_numbers_are_compared_as_numbers_and_none_does_not_apply():
    texts = ["it is 42.0", "042", "1,000", "42"]
    assert last_number_reward(texts, answer=["42", 42, "1000", None]) == [1.0, 1.0, 1.0, None]


def test_an_expected_text_that_is_no_number_is_named():
    with pytest.raises(ValueError, match=r"last_number_reward: answer\[1\] is 'many'; expected a number"):
        last_number_reward(["1", "2"], answer=["1", "many"])


@given(st.text(alphabet="ab .,=+\n", max_size=20), st.integers(0, 10**6), st.text(alphabet="ab !?\n", max_size=20))
def test_whatever_stands_around_it(before, number, after):
    said = f"{before} {number} {after}"
    assert last_number_reward([said], answer=[number]) == [1.0]
