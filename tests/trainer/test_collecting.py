"""Collected experience: its order, its advantages, the mask of its loss, and metrics whose names are all different."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from grpo_lab.advantages import ADVANTAGES, RewardBatch
from grpo_lab.base.checks import InputError, RunError
from grpo_lab.objective import LOSSES
from grpo_lab.trainer import collect, train
from grpo_lab.trainer.collecting import compute_advantages, make_experience
from tests.support.agreement import draw
from tests.support.small_policy import (
    ROWS,
    length_reward_or_none,
    letter_reward,
    make_config,
    make_policy,
    ragged_experience,
)


def test_the_rows_are_in_the_order_of_the_prompts_with_their_rewards_and_logged_columns():
    def reward(completions, completion_ids, answer, log_extra, log_metric, **kwargs):
        log_extra("length", [len(ids) for ids in completion_ids])
        log_metric("answers", len(set(answer)))
        return [float(answer == "d") for answer in answer]

    experience, metrics = collect(*make_policy(), ROWS[:2], [reward, length_reward_or_none], make_config())
    lengths = experience.rollout.mask.sum(-1).tolist()
    of_length = [float(length) if length > 1 else math.nan for length in lengths]
    by_answer = [0.0] * 4 + [1.0] * 4
    expected = torch.tensor([by_answer, of_length]).T
    torch.testing.assert_close(experience.rewards_per_func, expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(experience.rewards, expected.nansum(-1), rtol=0, atol=0)
    assert experience.rollout.prompt_of_row.tolist() == [0] * 4 + [1] * 4
    assert experience.logged_columns.values == {"length": lengths}
    assert metrics["answers"] == 2.0
    assert metrics["rewards/reward/mean"] == 0.5
    assert torch.equal(experience.advantages, compute_advantages(experience.rewards, make_config()))


def test_the_loss_leaves_out_truncated_completions_if_the_settings_say_so():
    rollout = ragged_experience([3, 5, 2, 5], columns=5).rollout
    assert rollout.truncated.tolist() == [False, True, False, True]
    for masks, expected in ((False, [3, 5, 2, 5]), (True, [3, 0, 2, 0])):
        config = make_config(generation_batch_size=4, mask_truncated_completions=masks)
        experience = make_experience(rollout, torch.tensor([1.0, 2.0, 3.0, 4.0]), config)
        assert experience.loss_mask.sum(-1).tolist() == expected
        assert not (experience.loss_mask & ~rollout.mask).any()


def test_completions_without_any_reward_are_left_out_of_every_comparison():
    """Completions without a reward have no gradient. In the second of two groups only one completion has a reward."""
    nan, centred = float("nan"), [x - 8 / 3 for x in (1, 3, 4)]
    rewards = torch.tensor([1.0, nan, 3.0, 4.0, nan, nan, 2.0, nan])
    of_group, of_batch = (np.std(scores, ddof=1) + 1e-4 for scores in ([1, 3, 4], [1, 3, 4, 2]))
    for settings, first, alone in [
        ({}, [x / of_group for x in centred], 0.0),
        ({"scale_rewards": "batch"}, [x / of_batch for x in centred], 0.0),
        ({"scale_rewards": "none"}, centred, 0.0),
        ({"advantage": "rloo"}, [-2.5, 0.5, 2.0], 0.0),
        ({"advantage": "none"}, [1, 3, 4], 2.0),
        ({"advantage": "best_of_group"}, [0, 0, 4], 0.0),
    ]:
        experience = make_experience(ragged_experience([2] * 8).rollout, rewards, make_config(**settings))
        expected = [first[0], 0, first[1], first[2], 0, 0, alone, 0]
        assert experience.advantages.tolist() == pytest.approx(expected, abs=1e-5), settings
        assert experience.has_gradient(every_row=False).tolist() == [x != 0 for x in expected]
        assert torch.equal(experience.advantages, compute_advantages(rewards, make_config(**settings)))


@pytest.mark.parametrize("missing", [False, True])
def test_the_advantages_of_a_run_are_those_of_its_entry_and_zero_without_a_reward(missing):
    rewards = draw(3, 4, seed=2)
    has_reward = torch.ones(3, 4, dtype=torch.bool)
    has_reward[0, 1] = has_reward[2, 1:] = not missing  # in the three groups, 1, 0 and 3 of the 4 rewards are missing
    rewards = torch.where(has_reward, rewards, float("nan"))
    for settings in (
        *({"scale_rewards": scale} for scale in ("group", "batch", "none")),
        *({"advantage": name} for name in ("rloo", "best_of_group", "none")),
    ):
        config = make_config(generation_batch_size=12, **settings)
        advantages = compute_advantages(rewards.flatten(), config).view(3, 4)
        assert (advantages[~has_reward] == 0).all()
        is_batch = config.scale_rewards == "batch"
        std = rewards[has_reward].std() + 1e-4 if is_batch else 1
        of_group = make_config(scale_rewards="none") if is_batch else config
        for p, row in enumerate(has_reward):
            if row.sum() == 1 and config.advantage != "none":
                assert not advantages[p].any()
            else:
                group = RewardBatch(rewards[p, row][None], has_reward=row[row][None])
                expected = ADVANTAGES[config.advantage].compute(group, of_group) / std
                torch.testing.assert_close(advantages[p, row][None], expected)


def test_a_reward_without_the_state_of_the_run_is_told_which_argument_is_missing():
    def reads_state(completions, trainer_state, **kwargs):
        return [1.0] * len(completions)

    with pytest.raises(TypeError, match="missing a required argument: 'trainer_state'"):
        collect(*make_policy(), ROWS[:2], reads_state, make_config())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda log_metric, log_extra: log_metric("a", "b"), "log_metric was called with 'a' and 'b'; expected a text"),
        (
            lambda log_metric, log_extra: log_extra("a", [object()]),
            "log_extra was called with 'a' and .*; expected a t",
        ),
        (lambda log_metric, log_extra: log_extra("a", [1]), "log_extra got 1 values for 'a'; expected 8, one for"),
    ],
)
def test_log_metric_and_log_extra_refuse_wrong_arguments_by_name(call, message):
    def reward(completions, log_metric, log_extra, **kwargs):
        call(log_metric, log_extra)
        return [1.0] * len(completions)

    config = make_config(num_generations=4, generation_batch_size=8)
    with pytest.raises(InputError, match=message):
        collect(*make_policy(), ROWS[:2], reward, config)


def logging_reward(name):
    """Return a reward function that logs a metric of this name."""

    def reward(completions, completion_ids, log_metric, **kwargs):
        log_metric(name, 1)
        return letter_reward(completions, completion_ids)

    return reward


OF_COLLECT = ("reward", "num_tokens", "completions/mean_length", "rewards/reward/std")
OF_THE_STEP = (
    "loss", "grad_norm", "ratio", "clip_ratio/low_mean", "kl", "learning_rate", "rows_without_gradient",
    "sampling/logp_difference_max", "time/update", "step", "step_time",
)  # fmt: skip


@pytest.mark.parametrize("name", OF_COLLECT)
def test_a_logged_metric_may_not_have_the_name_of_a_rollout_or_reward_metric(name):
    with pytest.raises(RunError, match=re.escape(f"metrics have '{name}' twice; expected another name")):
        collect(*make_policy(), ROWS[:2], logging_reward(name), make_config())


@pytest.mark.parametrize("name", OF_THE_STEP)
def test_a_logged_metric_may_not_have_the_name_of_a_step_metric(name):
    config = make_config(beta=0.1, max_steps=1)
    with pytest.raises(RunError, match=re.escape(f"metrics have '{name}' twice; expected another name")):
        train(*make_policy(), ROWS, logging_reward(name), config)


@pytest.mark.parametrize("name", ["loss", "sampling/logp_difference_max", "grad_norm", "learning_rate"])
def test_a_metric_of_a_users_loss_may_not_have_the_name_of_an_update_metric(name, monkeypatch):
    own_loss = replace(LOSSES["grpo"], clip_metrics=lambda batch, settings: {name: batch.ratio > 2})
    monkeypatch.setitem(LOSSES, "grpo", own_loss)
    with pytest.raises(RunError, match=f"^metrics have '{name}' twice; .*`clip_metrics` of the loss"):
        train(*make_policy(), ROWS, letter_reward, make_config(loss_type="grpo", max_steps=1))


def test_a_logged_metric_may_not_have_the_name_of_a_metric_of_a_users_loss(monkeypatch):
    """`collect` cannot know the name: the loss returns it with the first update."""

    def reward(completions, log_metric, **kwargs):
        log_metric("my_clip", 42)
        return [1.0, 0.0] * (len(completions) // 2)

    own_loss = replace(LOSSES["grpo"], clip_metrics=lambda batch, settings: {"my_clip": batch.ratio > 2})
    with monkeypatch.context() as patch:
        patch.setitem(LOSSES, "grpo", own_loss)
        with pytest.raises(RunError, match="^metrics have 'my_clip' twice; expected another name in `log_metric`"):
            train(*make_policy(), ROWS, reward, make_config(loss_type="grpo"))
        assert train(*make_policy(), ROWS, letter_reward, make_config(loss_type="grpo"))[0]["my_clip"] == 0
    assert train(*make_policy(), ROWS, reward, make_config(loss_type="grpo"))[0]["my_clip"] == 42
