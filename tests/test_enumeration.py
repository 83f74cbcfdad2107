"""The policy gradient by exact enumeration: estimators against autograd of the exact objective."""

import math
from itertools import product

import pytest
import torch

from grpo_lab.advantages import group_advantages, return_to_go, rloo_advantages
from grpo_lab.logprobs import token_logprobs
from grpo_lab.objective import LOSS_TYPES, importance_ratio, policy_loss
from grpo_lab.policy_gradient import reinforce_loss, sequence_logprob
from tests.support.agreement import assert_near, draw
from tests.support.enumerated import V, World, everywhere

# --- the policy gradient --------------------------------------------------------------------------------------


@everywhere
def test_probabilities_sum_to_one_and_scores_to_zero(world):
    probability = world.probability()
    assert_near(probability.sum(), torch.ones(()).double())
    score = world.gradient((probability.detach() * sequence_logprob(world.logp(), world.mask)).sum())
    assert_near(score, torch.zeros_like(score))


@everywhere
@pytest.mark.parametrize("baseline", [0.0, 0.7, -30.0])
def test_reinforce_is_unbiased_with_any_constant_baseline(world, baseline):
    seq_logp = sequence_logprob(world.logp(), world.mask)
    estimates = (world.probability().detach() * (world.rewards - baseline) * seq_logp).sum()
    assert_near(world.gradient(estimates), world.exact(), 1e-11)


def test_reinforce_loss_over_samples_in_proportion_is_the_exact_gradient():
    """The policy has probabilities k/8, and each token is sampled exactly k times."""
    counts = torch.tensor([1, 2, 5])
    theta = counts.double().log()[None].requires_grad_()
    y, rewards = torch.arange(3).repeat_interleave(counts), torch.tensor([3.0, -1.0, 2.0]).double()
    logp = token_logprobs(theta.expand(8, 1, 3), y[:, None])
    loss = reinforce_loss(sequence_logprob(logp, torch.ones(8, 1, dtype=torch.bool)), rewards[y])
    exact = (theta.softmax(-1) * rewards).sum()
    assert_near(torch.autograd.grad(loss, theta)[0], -torch.autograd.grad(exact, theta)[0])


def test_a_baseline_may_know_the_prefix_but_not_the_token():
    world = World(3)
    probability = world.probability().detach()[:, None]
    prefix_baseline = draw(len(world.theta), seed=9)[world.prefix]
    estimates = (probability * (world.rewards[:, None] - prefix_baseline) * world.logp()).sum()
    assert_near(world.gradient(estimates), world.exact())
    token_baseline = draw(V, seed=9)[world.y]
    biased = (probability * (world.rewards[:, None] - token_baseline) * world.logp()).sum()
    assert (world.gradient(biased) - world.exact()).abs().max() > 1e-2


@everywhere
def test_reward_to_go_is_unbiased(world):
    rewards = torch.where(world.mask, draw(len(world.theta), V, seed=5)[world.prefix, world.y], 0)
    exact = world.gradient((world.probability() * rewards.sum(1)).sum())
    for weights in (return_to_go(rewards[None], 1.0)[0], rewards.sum(1, keepdim=True)):
        terms = torch.where(world.mask, weights * world.logp(), 0).sum(1)
        assert_near(world.gradient((world.probability().detach() * terms).sum()), exact)
    only_now = torch.where(world.mask, return_to_go(rewards[None], 0.0)[0] * world.logp(), 0).sum(1)
    bias = (world.gradient((world.probability().detach() * only_now).sum()) - exact).abs().max()
    assert bias < 1e-12 if world.y.shape[1] == 1 else bias > 1e-2


# --- groups: every G-tuple of sequences -----------------------------------------------------------------------


def groups_of(world, G):
    """Return every tuple of G sequences as a row of indices, and the probability of each tuple."""
    index = torch.tensor(list(product(range(len(world.y)), repeat=G)))
    return index, world.probability().detach()[index].prod(1)


def expected_group_gradient(world, G, advantages_of):
    index, probability = groups_of(world, G)
    advantages = advantages_of(world.rewards[index])  # each tuple is a group, so P = N^G
    seq_logp = sequence_logprob(world.logp(), world.mask)[index]
    return world.gradient((probability * (advantages * seq_logp).mean(1)).sum())


@pytest.mark.parametrize("G", [2, 3])
@pytest.mark.parametrize("world", [World(2), World(2, 0)], ids=["None", "0"])
def test_groups(world, G):
    assert_near(expected_group_gradient(world, G, rloo_advantages), world.exact())
    centred = expected_group_gradient(world, G, lambda r: group_advantages(r, scale="none"))
    assert_near(centred, world.exact() * (G - 1) / G)
    scaled = expected_group_gradient(world, G, group_advantages)
    assert torch.nn.functional.cosine_similarity(scaled.flatten(), world.exact().flatten(), 0) < 1 - 1e-3
    raw = expected_group_gradient(world, G, lambda r: r)
    assert_near(raw, world.exact())


def test_two_completions_scaled_by_their_spread_climb_the_probability_of_winning():
    """With G = 2 and the population std, an advantage is the sign of the difference of the rewards."""
    world = World(2)
    gradient = expected_group_gradient(world, 2, lambda r: group_advantages(r, ddof=0, eps=1e-13))
    probability, r = world.probability(), world.rewards
    wins = torch.sign(r[:, None] - r[None, :]).detach()
    won = (probability[:, None] * probability.detach()[None, :] * wins).sum()
    assert_near(gradient, world.gradient(won), 1e-9)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_the_first_step_of_every_loss_is_the_policy_gradient(loss_type, level):
    """Equal lengths, leave-one-out advantages: it is minus the exact gradient, times the aggregation's factor."""
    world, G, T, T_max = World(2), 2, 2, 5
    index, probability = groups_of(world, G)
    advantages, logp = rloo_advantages(world.rewards[index]), world.logp()
    losses = [
        policy_loss(
            logp[i], a, world.mask[i], loss_type=loss_type, importance_sampling_level=level,
            epsilon_high=5.0, max_completion_length=T_max,
        )[0]
        for i, a in zip(index, advantages, strict=True)
    ]  # fmt: skip
    factor = {"luspo": 1.0, "dr_grpo": 1 / T_max}.get(loss_type, 1 / T)
    assert_near(world.gradient((probability * torch.stack(losses)).sum()), -factor * world.exact())


# --- off-policy -----------------------------------------------------------------------------------------------


def test_the_product_of_ratios_corrects_for_another_sampler():
    world = World(2)
    old = world.probability(world.old)
    weight = importance_ratio(world.logp(), world.logp(world.old), world.mask).prod(1)
    assert_near((old * weight).sum(), torch.ones(()).double())
    assert_near(world.gradient((old * weight * world.rewards).sum()), world.exact())
    normalised = importance_ratio(world.logp(), world.logp(world.old), world.mask, "sequence")[:, 0]
    assert abs((old * normalised).sum().item() - 1) > 1e-2, "GSPO's length-normalised ratio is no importance weight"


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dapo", "luspo"])
def test_unclipped_off_policy_loss_has_the_exact_gradient_at_one_token(loss_type):
    world = World(1)
    losses = world.row_losses(world.rewards, loss_type=loss_type, epsilon=1.0, epsilon_high=math.inf)
    assert_near(world.gradient((world.probability(world.old) * losses).sum()), -world.exact())
    clipped = world.row_losses(world.rewards, loss_type=loss_type)
    assert (world.gradient((world.probability(world.old) * clipped).sum()) + world.exact()).abs().max() > 1e-2
