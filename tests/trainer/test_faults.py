"""Non-finite updates, missing rewards and half precision: the trainer skips, counts, leaves out or stops."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from grpo_lab.advantages import ADVANTAGES, RewardBatch
from grpo_lab.config.precision import PRECISIONS
from grpo_lab.trainer import loop, train
from grpo_lab.trainer.collecting import compute_advantages, make_experience
from tests.support.agreement import draw
from tests.support.small_policy import (
    ROWS,
    letter_reward,
    make_config,
    make_policy,
    ragged_experience,
    same_weights,
    train_small,
    weights,
)


def spoil(monkeypatch, calls, value=float("nan")):
    """Make the loss and its gradient non-finite in these calls of `microbatch_loss`."""
    count, microbatch_loss = iter(range(1000)), loop.microbatch_loss

    def spoilt(*arguments, **keywords):
        loss, metrics = microbatch_loss(*arguments, **keywords)
        return loss * value if next(count) in calls else loss, metrics

    monkeypatch.setattr(loop, "microbatch_loss", spoilt)


def test_a_loss_that_is_not_finite_is_skipped_counted_and_forgotten(monkeypatch):
    spoil(monkeypatch, {1, 2, 4}, float("inf"))
    weights_after = []
    model, tokenizer = make_policy()
    history = train(
        model, tokenizer, ROWS, letter_reward, make_config(max_steps=6), lambda *_: weights_after.append(weights(model))
    )
    moved = [not same_weights(earlier, later) for earlier, later in pairwise(weights_after)]
    assert moved == [False, False, True, False, True]
    assert [metrics["nonfinite_steps"] for metrics in history] == [0, 1, 2, 2, 3, 3]
    assert all(value.isfinite().all() for value in weights_after[-1].values())


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
        assert experience.rows_with_gradient(every_row=False).tolist() == [x != 0 for x in expected]
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


@pytest.mark.parametrize("name", PRECISIONS)
def test_every_mode_trains(name):
    """In half precision, sampler and trainer may differ by the rounding of a logit, of which 3 bits are fractional."""
    model, tokenizer = make_policy()
    model.to(PRECISIONS[name].weights)
    start = weights(model)
    history = train(model, tokenizer, ROWS, letter_reward, make_config(beta=0.05, max_steps=3, precision=name))
    assert all(v.dtype == PRECISIONS[name].weights and v.isfinite().all() for v in weights(model).values())
    assert all(not torch.equal(start[k], v) for k, v in weights(model).items() if "proj.weight" in k)
    bound = 1e-4 if name == "fp32" else 0.1
    assert history[0]["kl"] == 0.0, "the reference computes as the policy does: else it would be that of the rounding"
    assert history[-1]["nonfinite_steps"] == 0 and all(m["sampling/logp_difference_max"] < bound for m in history)


def test_weights_that_have_grown_beyond_all_bounds_are_said_to_have():
    with pytest.raises(RuntimeError, match=r"logits are not finite, so nothing can be sampled.*look at learning_rate"):
        train_small(learning_rate=1e30, max_steps=4)
