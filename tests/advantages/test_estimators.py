"""The rule for missing rewards: the completions of a group that have a reward are compared among themselves."""

import math

import numpy as np
import pytest
import torch

from grpo_lab.advantages import ADVANTAGES, AdvantageEstimator, RewardBatch, group_advantages
from grpo_lab.config import GRPOConfig
from tests.support.agreement import draw

BY_SCALE = {scale: GRPOConfig(scale_rewards=scale) for scale in ("group", "batch", "none")}


def computed_advantages(entry: AdvantageEstimator, rewards, config=BY_SCALE["group"]):
    """Return the advantages of an entry for rewards (P, G), where NaN is a missing reward."""
    return entry.compute(RewardBatch(rewards, ~rewards.isnan()), config)


def test_a_completion_without_reward_has_advantage_zero_and_enters_no_baseline():
    nan = math.nan
    rewards = torch.tensor([[1.0, nan, 4.0], [nan, 2.0, nan], [nan, nan, nan], [3.0, 5.0, 10.0]])
    advantages = computed_advantages(ADVANTAGES["rloo"], rewards)
    assert advantages.tolist() == [[-3.0, 0.0, 3.0], [0.0] * 3, [0.0] * 3, [-4.5, -1.5, 6.0]]
    unchanged = computed_advantages(ADVANTAGES["none"], rewards)
    assert unchanged.tolist() == rewards.nan_to_num(0.0).tolist()


def test_the_formula_gets_the_rewards_turns_and_states_of_one_group_without_missing_ones():
    rewards = torch.tensor([[[1.0, 2.0], [math.nan] * 2, [3.0, 4.0]], [[math.nan] * 2, [5.0, 6.0], [math.nan] * 2]])
    turn_mask, states = draw(2, 3, 2, seed=0) > 0, torch.arange(12).view(2, 3, 2)
    batches = []
    entry = AdvantageEstimator(lambda batch, config: batches.append(batch) or batch.rewards)
    batch = RewardBatch(rewards, ~rewards.isnan().any(-1), turn_mask, states)
    assert entry.compute(batch, BY_SCALE["group"]).tolist() == [[[1, 2], [0, 0], [3, 4]], [[0, 0]] * 3]
    (group,) = batches  # the second group has a single reward
    assert group.rewards.tolist() == [[[1, 2], [3, 4]]] and group.has_reward.tolist() == [[True, True]]
    assert torch.equal(group.turn_mask, turn_mask[:1, ::2]) and torch.equal(group.states, states[:1, ::2])
    assert group.all_rewards.tolist() == [[1, 2], [3, 4], [5, 6]]
    entry.compute(batch._replace(turn_mask=None, states=None), BY_SCALE["group"])
    assert (batches[1].turn_mask, batches[1].states) == (None, None)


def test_a_group_of_one_completion_is_computed_although_another_group_has_no_reward():
    rewards = torch.tensor([[1.0], [0.0], [math.nan]])
    entry = AdvantageEstimator(lambda batch, config: batch.rewards - 0.5, min_group_size=1)
    assert computed_advantages(entry, rewards).tolist() == [[0.5], [-0.5], [0.0]]


def test_batch_deviation_is_that_of_the_rewards_that_apply():
    rewards = torch.tensor([[1.0, 0.0, math.nan], [10.0, math.nan, 0.0]], dtype=torch.float64)
    expected = [value / (np.std([1, 0, 10, 0], ddof=1) + 1e-4) for value in (0.5, -0.5, 0.0, 5.0, 0.0, -5.0)]
    advantages = computed_advantages(ADVANTAGES["group"], rewards, BY_SCALE["batch"])
    assert advantages.flatten().tolist() == pytest.approx(expected, rel=1e-12)
    alone = torch.tensor([[math.nan, 2.0]])
    assert computed_advantages(ADVANTAGES["group"], alone, BY_SCALE["batch"]).tolist() == [[0.0, 0.0]]
    known = draw(3, 4, seed=1)
    for scale, config in BY_SCALE.items():
        advantages = computed_advantages(ADVANTAGES["group"], known, config)
        assert torch.equal(advantages, group_advantages(known, scale))


def test_batch_deviation_is_as_exact_with_a_missing_reward():
    """The deviation of large float32 rewards is measured from the first one, whether a reward is missing or not."""
    rewards = torch.tensor([[1e6 + 1, 1e6, 1e6 + 3], [1e6, 1e6 + 2, 1e6]])
    complete = group_advantages(rewards, "batch")
    one_more = torch.cat([rewards, torch.tensor([[math.nan] * 3])])
    advantages = computed_advantages(ADVANTAGES["group"], one_more, BY_SCALE["batch"])
    assert torch.equal(advantages[:2], complete) and (advantages[2] == 0).all()
