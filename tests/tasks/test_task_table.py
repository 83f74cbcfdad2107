"""Rows of several tasks: those of recorded runs, disjoint splits, and errors that name the argument."""

import hashlib
import inspect
import json
from functools import partial

import pytest

from grpo_lab import tasks
from grpo_lab.tasks.rows import check_problem_count
from tests.support.rows import question_of

chinese_problems = partial(tasks.word_problems, language="zh")
makers = pytest.mark.parametrize("make", [tasks.addition_problems, tasks.word_problems, chinese_problems])


# The rows of recorded runs and of the training of the tiny model, as the first characters of their SHA-256.
RECORDED = {
    "sums, train": (tasks.addition_problems, ("train", 20_000, 0), "de57eb0001f03a97"),
    "sums, test": (tasks.addition_problems, ("test", 1000, 1), "7a32933c736ccc0e"),
    "word problems, train": (tasks.word_problems, ("train", 600, 0), "02454876012d5cee"),
    "word problems, test": (tasks.word_problems, ("test", 360, 3), "53cde6afb1d49965"),
    "chat in Chinese": (tasks.chat_tasks, (), "2430a22e7785a82f"),
}


def test_the_rows_of_recorded_runs_are_the_same_to_the_last_character():
    for name, (make, arguments, expected) in RECORDED.items():
        text = json.dumps(make(*arguments), ensure_ascii=False, sort_keys=True)
        assert hashlib.sha256(text.encode("utf-8")).hexdigest()[:16] == expected, name


@makers
def test_rows_are_plain_distinct_and_repeatable(make):
    rows_of_split = {split: make(split, 300, 1) for split in tasks.SPLITS}
    train, test = ({question_of(row) for row in rows_of_split[split]} for split in tasks.SPLITS)
    assert len(train) == len(test) == 300
    assert not train & test
    assert make("train", 50, 1) == rows_of_split["train"][:50] != make("train", 50, 2)
    assert json.loads(json.dumps(rows_of_split["test"])) == rows_of_split["test"]
    assert len(tasks.word_problems("test", limit := tasks.MAX_WORD_PROBLEMS["test"])) == limit


@makers
def test_problem_makers_refuse_wrong_splits_and_counts(make):
    with pytest.raises(ValueError, match="split is 'dev'; expected one of 'train', 'test'"):
        make("dev", 10)
    for n in (0, 10**9):
        with pytest.raises(ValueError, match=rf"n is {n}; it must be a whole number from 1 to \d+ for the split"):
            make("test", n)
    check = inspect.unwrap(check_problem_count)  # without the type check at run time, which would raise first
    for n in (1.5, "3", True, None):
        with pytest.raises(ValueError, match=f"n is {n!r}"):
            check(n, "train", {"train": 9})
