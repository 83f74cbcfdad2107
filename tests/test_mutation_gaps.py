"""Behaviour that the other tests leave open, found by planting mistakes (`python -m tests.mutants`)."""

import math

import pytest
import torch

from grpo_lab import advantages as adv
from grpo_lab import objective
from tests.support import oracles
from tests.support.agreement import assert_agree, assert_near, draw, ragged_mask


def test_step_rewards_that_carry_a_gradient_pass_it_on():
    """A differentiable reward is rare, and nothing in the formulas forbids it."""
    rewards, mask = draw(2, 3, 4, seed=0), draw(2, 3, 4, seed=1) > -0.5
    assert_agree(
        lambda r: adv.process_advantages(r, mask),
        lambda r: oracles.process_advantages(r, mask),
        rewards,
        tolerance=1e-9,
    )


def test_the_reward_of_the_best_that_carries_a_gradient_passes_it_on():
    assert_agree(adv.best_of_group, oracles.best_of_group, draw(3, 4, seed=0))


def test_vespo_weighs_a_sequence_that_has_become_impossible_by_the_lower_bound():
    """exp(-60) is below any absolute tolerance, so the comparison is relative: the weight is that of w = 1e-8."""
    logp = torch.tensor([[-16.0, -14.0], [-9.0, -9.0]], dtype=torch.float64)
    old, mask = torch.full((2, 2), -0.5, dtype=torch.float64), torch.ones(2, 2, dtype=torch.bool)
    for sign in (1.0, -1.0):
        advantages = torch.tensor([sign, sign], dtype=torch.float64)
        ours = objective.vespo_surrogate(logp, old, mask, advantages)
        weights = [oracles.vespo_weight(logp, old, mask, b, sign) for b in range(2)]
        want = torch.tensor(weights, dtype=torch.float64)[:, None] * sign * logp
        torch.testing.assert_close(ours, want, rtol=1e-10, atol=0.0)


@pytest.mark.parametrize("a", [-2.0, -0.5, 0.0, 0.5, 2.0])
def test_smooth_surrogates_go_by_the_sign_of_the_advantage_and_not_by_its_size(a):
    logp, old, mask = draw(3, 4, seed=0), draw(3, 4, seed=1), ragged_mask(3, 4, 2)
    advantages = torch.full((3,), a, dtype=torch.float64)
    tau = 1.3 if a > 0 else 1.7
    gate = [[4 / tau / (1 + math.exp(tau * (1 - math.exp(x)))) for x in row] for row in (logp - old).tolist()]
    gate = torch.tensor(gate, dtype=torch.float64)
    ratio = (logp - old).exp().requires_grad_()
    ours = objective.sapo_surrogate(ratio, advantages, tau_pos=1.3, tau_neg=1.7)
    assert_near(ours, a * gate)
    (gradient,) = torch.autograd.grad(ours.sum(), ratio)
    assert_near(gradient, a * tau * gate * (1 - tau * gate / 4))  # with s = tau gate / 4 it is 4 a s (1 - s)
    weights = torch.tensor([oracles.vespo_weight(logp, old, mask, b, a) for b in range(3)], dtype=torch.float64)
    x = logp.clone().requires_grad_()
    surrogate = objective.vespo_surrogate(x, old, mask, advantages)
    assert_near(surrogate, a * weights[:, None] * logp)
    (gradient,) = torch.autograd.grad(surrogate.sum(), x)
    assert_near(gradient, a * weights[:, None].expand(3, 4))


def test_the_weight_of_cispo_is_bounded_and_carries_no_gradient():
    logp, old, advantages = draw(3, 4, seed=0).requires_grad_(), draw(3, 4, seed=1), draw(3, seed=2)
    surrogate = objective.cispo_surrogate((logp - old).exp(), logp, advantages, 1.1)
    weight = torch.tensor([[min(math.exp(x), 1.1) for x in row] for row in (logp - old).tolist()], dtype=torch.float64)
    assert_near(surrogate, weight * advantages[:, None] * logp.detach())
    (gradient,) = torch.autograd.grad(surrogate.sum(), logp)
    assert_near(gradient, weight * advantages[:, None])


SURROGATES = {
    "clipped": lambda logp, old, mask, a: objective.clipped_surrogate((logp - old).exp(), a),
    "cispo": lambda logp, old, mask, a: objective.cispo_surrogate((logp - old).exp(), logp, a, 1.1),
    "sapo": lambda logp, old, mask, a: objective.sapo_surrogate((logp - old).exp(), a),
    "vespo": objective.vespo_surrogate,
}


@pytest.mark.parametrize("name", SURROGATES)
def test_one_advantage_a_completion_belongs_to_its_row_where_there_are_as_many_rows_as_tokens(name):
    logp, old, mask = draw(4, 4, seed=0), draw(4, 4, seed=1), ragged_mask(4, 4, 2)
    advantages = draw(4, seed=3)
    surrogate = SURROGATES[name]
    assert_near(
        surrogate(logp, old, mask, advantages), surrogate(logp, old, mask, advantages[:, None].expand(4, 4).clone())
    )


def test_sampling_reaches_every_token_of_the_vocabulary(tiny):
    """Left to its defaults, `generate` draws from the 50 likeliest tokens only."""
    from grpo_lab.rollout import sample_completions

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        rollout = sample_completions(*tiny, ["1+2="], 400, 1, temperature=1e3)
    assert len(rollout.completion_ids.unique()) > 100


def test_nothing_is_not_the_right_answer_even_without_an_answer_block():
    from grpo_lab.rewards import math_reward

    nothing = ["", " \n", "<think>4</think>", "<think>4</think><answer></answer>", "<answer> </answer>"]
    assert math_reward(nothing, ["4"] * len(nothing)) == [0.0] * len(nothing)
