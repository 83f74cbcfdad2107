"""Sums up to 20: 400 of them, a quarter held out, mirror images together."""

import pytest

from grpo_lab.tasks.short import MAX_SHORT_SUMS, short_sum_row, short_sum_split, short_sums
from grpo_lab.tasks.table import TASKS


def questions(split):
    return [row["prompt"][0]["content"] for row in short_sums(split)]


def test_every_sum_is_in_one_split_and_a_quarter_is_held_out():
    train, test = questions("train"), questions("test")
    assert len({*train, *test}) == len(train) + len(test) == 400
    assert {"train": len(train), "test": len(test)} == MAX_SHORT_SUMS
    assert 0.2 < len(test) / 400 < 0.3


def test_mirror_images_are_in_the_same_split():
    pairs = [(a, b) for a in range(1, 21) for b in range(1, 21)]
    assert all(short_sum_split(a, b) == short_sum_split(b, a) for a, b in pairs)


def test_a_row_says_what_is_asked_and_what_is_right():
    row = short_sum_row(3, 14)
    assert row == {
        "prompt": [{"role": "user", "content": "What is 3 + 14? Answer with the number only."}],
        "answer": "17",
    }


def test_the_order_is_that_of_the_seed_and_a_longer_list_starts_with_the_shorter_one():
    assert short_sums("train", 50, seed=1) == short_sums("train", seed=1)[:50]
    assert short_sums("train", seed=0) != short_sums("train", seed=1)


def test_too_many_are_refused():
    with pytest.raises(ValueError, match="n is 301; it must be a whole number from 1 to"):
        short_sums("train", 301)


def test_the_task_of_this_name_takes_the_last_number():
    task = TASKS["short-sums"]
    assert task.reward_funcs == ("last",) and task.rows("test", 3) == short_sums("test", 3)
