"""Rows: right answers, splits that never meet, same arguments same rows, errors that name the argument."""

import inspect
import json
import re
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab import tasks
from grpo_lab.tasks.rows import check_number

operands = st.lists(st.integers(10, 99), min_size=3, max_size=3)
makers = pytest.mark.parametrize("make", [tasks.addition_problems, tasks.word_problems])

FIRST_TRAIN = ["13+53+56=?", "75+98+99=?"]
FIRST_TEST = ["71+63+50=?", "66+31+95=?"]


def question_of(row):
    return row["prompt"][-1]["content"]


def test_sums_are_three_two_digit_numbers_with_the_right_answer():
    for row in tasks.addition_problems("train", 500, 3):
        (message,) = row["prompt"]
        assert message["role"] == "user"
        a, b, c = map(int, re.fullmatch(r"(\d\d)\+(\d\d)\+(\d\d)=\?", message["content"]).groups())
        assert row["operands"] == [a, b, c]
        assert row["answer"] == str(a + b + c)


@given(operands, st.randoms(use_true_random=False))
def test_the_split_of_a_sum_ignores_the_order_of_its_operands(numbers, rng):
    shuffled = list(numbers)
    rng.shuffle(shuffled)
    assert tasks.addition_split(shuffled) == tasks.addition_split(numbers) in tasks.SPLITS


def test_every_sum_has_one_split_and_every_row_is_of_the_split_asked_for():
    # The split depends on the sorted operands alone, so rows of two splits can share no problem, reordered or not.
    found = {}
    for split in tasks.SPLITS:
        rows = [row for seed in range(3) for row in tasks.addition_problems(split, 2000, seed)]
        assert {tasks.addition_split(row["operands"]) for row in rows} == {split}
        found[split] = {tuple(sorted(row["operands"])) for row in rows}
    assert not found["train"] & found["test"]


def test_word_problems_of_the_two_splits_are_disjoint():
    found = {
        s: {question_of(row) for seed in range(3) for row in tasks.word_problems(s, 300, seed)} for s in tasks.SPLITS
    }
    assert not found["train"] & found["test"]


def test_a_tenth_of_all_sums_is_held_out():
    triples = [(a, b, c) for a in range(10, 100) for b in range(a, 100) for c in range(b, 100)]
    share = Counter(map(tasks.addition_split, triples))["test"] / len(triples)
    assert share == pytest.approx(tasks.TEST_SHARE, abs=0.005)


@makers
def test_same_arguments_same_rows_other_seed_other_rows_longer_starts_with_shorter(make):
    assert make("train", 50, 1) == make("train", 50, 1)
    assert make("train", 50, 1) != make("train", 50, 2)
    assert make("train", 80, 1)[:50] == make("train", 50, 1)


@makers
@pytest.mark.parametrize("split", tasks.SPLITS)
def test_the_rows_of_one_call_are_all_different(make, split):
    rows = make(split, 300, 0)
    assert len(rows) == len({question_of(row) for row in rows}) == 300


def test_rows_do_not_change_between_versions_and_machines():
    assert [question_of(row) for row in tasks.addition_problems("train", 2, 0)] == FIRST_TRAIN
    assert [question_of(row) for row in tasks.addition_problems("test", 2, 1)] == FIRST_TEST


@pytest.mark.parametrize("split", tasks.SPLITS)
def test_as_many_word_problems_as_promised(split):
    limit = tasks.MAX_WORD_PROBLEMS[split]
    assert len(tasks.word_problems(split, limit)) == limit


def test_word_problems_by_hand():
    by_story = {problem.story: problem.solve for problem in tasks.WORD_PROBLEMS}
    expected = {
        "marbles": ((42, 10, 5), 47),
        "eggs": ((12, 3, 4), 40),
        "coaches": ((4, 50, 110), 90),
        "pages": ((20, 3), 420),
        "rope": ((9, 4), Fraction(9, 4)),
        "drawn": ((3, 5), Fraction(3, 8)),
        "mother": ((10, 4, 6), 46),
        "yuan": ((12, 5, 3), 41),
        "rectangle": ((4, 31), 70),
        "scores": ((10, 12, 15), Fraction(37, 3)),
        "litres": ((90, 4), Fraction(45, 2)),
        "apples": ((70, 20), 10),
    }
    assert len(expected) == len(by_story)
    for word, (numbers, answer) in expected.items():
        (solve,) = [solve for story, solve in by_story.items() if word in story]
        assert solve(*numbers) == answer


def test_word_problems_have_sensible_exact_answers_and_ask_for_the_tags():
    rows = tasks.word_problems("train", 600)
    assert len({row["prompt"][1]["content"].split()[0] + row["prompt"][1]["content"][-12:] for row in rows}) >= 12
    for row in rows:
        system, user = row["prompt"]
        assert (system["role"], user["role"]) == ("system", "user")
        assert all(tag in system["content"] for tag in ("<think>", "</think>", "<answer>", "</answer>"))
        assert Fraction(row["answer"]) > 0
        assert all(str(number) in user["content"] for number in row["numbers"])
        assert "{" not in user["content"]


def test_chat_tasks():
    rows = tasks.chat_tasks()
    assert [row["answer"] for row in rows] == ["czq是神！", "4", "I like machine learning", "通义千问"]
    assert all(row["prompt"][0]["role"] == "user" for row in rows)
    rows[0]["answer"] = "changed"
    assert tasks.chat_tasks()[0]["answer"] == "czq是神！"


@makers
def test_rows_are_plain_data(make):
    rows = make("test", 20)
    assert json.loads(json.dumps(rows)) == rows
    assert {tuple(row) for row in rows} == {tuple(rows[0])}


@pytest.mark.parametrize(
    ("text", "thinks"),
    [
        ("<think>1+1=2</think><answer>2</answer>", True),
        ("<think>1+1=2\n2+3=5</think>", True),
        ("<answer>2</answer>", False),
        ("<think> \n</think><answer>2</answer>", False),
        ("<think>1+1=2", False),
        ("1+1=2</think>", False),
        ("", False),
    ],
)
def test_has_thinking(text, thinks):
    assert tasks.has_thinking(text) is thinks


@makers
def test_wrong_arguments_are_named(make):
    with pytest.raises(ValueError, match="split is 'dev'; expected one of 'train', 'test'"):
        make("dev", 10)
    for n in (0, -1, 10**9):
        with pytest.raises(ValueError, match=rf"n is {n}; it must be a whole number from 1 to \d+ for the split"):
            make("test", n)


@pytest.mark.parametrize("n", [1.5, "3", True, None])
def test_a_number_of_rows_is_a_whole_number(n):
    check = inspect.unwrap(check_number)  # without the run-time type check of the tests, which would answer first
    with pytest.raises(ValueError, match=f"n is {n!r}; it must be a whole number from 1 to 9 for the split 'train'"):
        check(n, "train", {"train": 9})
