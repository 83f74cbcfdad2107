"""Advantages where some rewards are missing: the others are compared among themselves."""

import math

import numpy as np
import pytest
import torch

from grpo_lab.advantages import (
    ADVANTAGES,
    RewardBatch,
    advantages_where_rewarded,
    group_advantages,
    group_advantages_where_rewarded,
    rloo_advantages,
)
from tests.support.agreement import draw


def test_a_completion_without_reward_has_advantage_zero_and_enters_no_baseline():
    nan = math.nan
    rewards = torch.tensor([[1.0, nan, 4.0], [nan, 2.0, nan], [nan, nan, nan], [3.0, 5.0, 10.0]])
    advantages = advantages_where_rewarded(rloo_advantages, ~rewards.isnan(), rewards)
    assert advantages.tolist() == [[-3.0, 0.0, 3.0], [0.0] * 3, [0.0] * 3, [-4.5, -1.5, 6.0]]
    unchanged = ADVANTAGES["none"].compute(RewardBatch(rewards, ~rewards.isnan()), None)
    assert unchanged.tolist() == rewards.nan_to_num(0.0).tolist()
    states_seen = []
    advantages_where_rewarded(lambda r, states: states_seen.append(states) or r, ~rewards.isnan(), rewards, None)
    assert states_seen == [None, None], "of the two groups in which two or more are known"


def test_a_group_of_one_completion_is_computed_although_another_group_has_no_reward():
    rewards = torch.tensor([[1.0], [0.0], [math.nan]])
    advantages = advantages_where_rewarded(lambda r: r - 0.5, ~rewards.isnan(), rewards)
    assert advantages.tolist() == [[0.5], [-0.5], [0.0]]


def test_batch_deviation_is_that_of_the_rewards_that_apply():
    rewards = torch.tensor([[1.0, 0.0, math.nan], [10.0, math.nan, 0.0]], dtype=torch.float64)
    expected = [value / (np.std([1, 0, 10, 0], ddof=1) + 1e-4) for value in (0.5, -0.5, 0.0, 5.0, 0.0, -5.0)]
    assert group_advantages_where_rewarded(rewards, ~rewards.isnan(), "batch").flatten().tolist() == pytest.approx(
        expected, rel=1e-12
    )
    alone = torch.tensor([[math.nan, 2.0]])
    assert group_advantages_where_rewarded(alone, ~alone.isnan(), "batch").tolist() == [[0.0, 0.0]]
    known = draw(3, 4, seed=1)
    for scale in ("group", "batch", "none"):
        advantages = group_advantages_where_rewarded(known, ~known.isnan(), scale)
        assert torch.equal(advantages, group_advantages(known, scale))


def test_batch_deviation_is_as_exact_with_a_missing_reward():
    """The deviation of large float32 rewards is measured from the first one, whether a reward is missing or not."""
    rewards = torch.tensor([[1e6 + 1, 1e6, 1e6 + 3], [1e6, 1e6 + 2, 1e6]])
    complete = group_advantages(rewards, "batch")
    one_more = torch.cat([rewards, torch.tensor([[math.nan] * 3])])
    advantages = group_advantages_where_rewarded(one_more, ~one_more.isnan(), "batch")
    assert torch.equal(advantages[:2], complete) and (advantages[2] == 0).all()
