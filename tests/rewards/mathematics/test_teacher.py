"""`math_reward` marks as a good teacher would, rule by rule, but for what its docstring says."""

import logging

import pytest

from grpo_lab.rewards import math_reward
from tests.rewards.mathematics.teacher import DEPARTURES, PAIRS, by_math_verify, by_trl


def rewards(pairs):
    given = [f"<think>so</think><answer>{given}</answer>" for _, given, _ in pairs]
    return math_reward(given, answer=[expected for expected, _, _ in pairs], time_limit=60.0, batch_time_limit=600.0)


@pytest.mark.parametrize("rule", PAIRS)
def test_as_a_teacher_would(rule):
    marked = [(e, g, reward == 1.0) for (e, g, _), reward in zip(PAIRS[rule], rewards(PAIRS[rule]), strict=True)]
    assert marked == PAIRS[rule]


def test_where_it_departs_from_a_teacher_is_known():
    assert [reward == 1.0 for reward in rewards(DEPARTURES)] == [not right for _, _, right in DEPARTURES]


def test_a_box_after_the_thinking_is_marked_like_a_block():
    every = [pair for pairs in PAIRS.values() for pair in pairs if pair[1].strip() and "boxed" not in pair[1]]
    boxes = [rf"<think>so</think> So it is $\boxed{{{given}}}$." for _, given, _ in every]
    marked = math_reward(boxes, answer=[pair[0] for pair in every], time_limit=60.0, batch_time_limit=600.0)
    assert [reward == 1.0 for reward in marked] == [right for _, _, right in every]


def test_an_expected_answer_is_equal_to_itself():
    golds = {expected for pairs in PAIRS.values() for expected, _, _ in pairs}
    assert set(rewards([(gold, gold, True) for gold in golds])) == {1.0}


@pytest.mark.slow
def test_the_table_is_large_and_nobody_else_marks_it_so(monkeypatch):
    pytest.importorskip("trl.rewards")
    every = [pair for pairs in (*PAIRS.values(), DEPARTURES) for pair in pairs]
    assert len(every) >= 150 and len({pair[:2] for pair in every}) == len(every)
    logging.disable(logging.CRITICAL)
    try:
        theirs = {mark: sum(mark(e, g) == right for e, g, right in every) for mark in (by_math_verify, by_trl)}
    finally:
        logging.disable(logging.NOTSET)
    assert max(theirs.values()) < len(every) - len(DEPARTURES)
