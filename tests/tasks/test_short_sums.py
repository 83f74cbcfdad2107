"""Sums up to 20: their splits, their rows, and their task."""

import pytest

from grpo_lab import tasks
from grpo_lab.tasks.short_sums import short_sum_row, short_sum_split, short_sums
from tests.support.rows import question_of


def test_short_sums_share_a_split_with_their_mirror_image():
    train, test = ([question_of(row) for row in short_sums(split)] for split in ("train", "test"))
    assert len({*train, *test}) == len(train) + len(test) == 400
    assert 0.2 < len(test) / 400 < 0.3
    pairs = [(a, b) for a in range(1, 21) for b in range(1, 21)]
    assert all(short_sum_split(a, b) == short_sum_split(b, a) for a, b in pairs)


def test_short_sums_by_hand_and_by_seed():
    message = {"role": "user", "content": "What is 3 + 14? Answer with the number only."}
    assert short_sum_row(3, 14) == {"prompt": [message], "answer": "17"}
    assert short_sums("train", 50, seed=1) == short_sums("train", seed=1)[:50] != short_sums("train", 50, seed=0)
    with pytest.raises(ValueError, match="n is 301; it must be a whole number from 1 to"):
        short_sums("train", 301)
    task = tasks.TASKS["short-sums"]
    assert task.reward_funcs == ("last",)
    assert task.rows("test", 3) == short_sums("test", 3)
