"""A sum is in one split, whatever the order of its operands."""

from collections import Counter
from itertools import permutations

import pytest

from grpo_lab import tasks
from grpo_lab.tasks.rows import TEST_SHARE
from tests.support.rows import question_of


def test_every_sum_has_one_split_whatever_the_order_and_a_tenth_is_held_out():
    triples = [(a, b, c) for a in range(10, 100, 2) for b in range(a, 100, 3) for c in range(b, 100)]
    share = Counter(map(tasks.addition_split, triples))["test"] / len(triples)
    assert share == pytest.approx(TEST_SHARE, abs=0.01)
    matches = {}
    for split in tasks.SPLITS:
        rows = tasks.addition_problems(split, 500)
        operands = [row["operands"] for row in rows]
        assert [row["answer"] for row in rows] == [str(sum(numbers)) for numbers in operands]
        assert [question_of(row) for row in rows] == ["{}+{}+{}=?".format(*numbers) for numbers in operands]
        assert {tasks.addition_split(order) for numbers in operands for order in permutations(numbers)} == {split}
        matches[split] = {tuple(sorted(numbers)) for numbers in operands}
    assert not matches["train"] & matches["test"]
