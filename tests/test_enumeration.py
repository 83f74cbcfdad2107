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
from tests.support.enumerated import SequenceSpace, V, each_size

# --- the policy gradient --------------------------------------------------------------------------------------


@each_size
def test_probabilities_sum_to_one_and_scores_to_zero(space):
    probability = space.probability()
    assert_near(probability.sum(), torch.ones(()).double())
    score = space.gradient((probability.detach() * sequence_logprob(space.logp(), space.mask)).sum())
    assert_near(score, torch.zeros_like(score))


@each_size
@pytest.mark.parametrize("baseline", [0.0, 0.7, -30.0])
def test_reinforce_is_unbiased_with_any_constant_baseline(space, baseline):
    seq_logp = sequence_logprob(space.logp(), space.mask)
    estimates = (space.probability().detach() * (space.rewards - baseline) * seq_logp).sum()
    assert_near(space.gradient(estimates), space.exact(), 1e-11)


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
    space = SequenceSpace(3)
    probability = space.probability().detach()[:, None]
    prefix_baseline = draw(len(space.theta), seed=9)[space.prefix_index]
    estimates = (probability * (space.rewards[:, None] - prefix_baseline) * space.logp()).sum()
    assert_near(space.gradient(estimates), space.exact())
    token_baseline = draw(V, seed=9)[space.y]
    biased = (probability * (space.rewards[:, None] - token_baseline) * space.logp()).sum()
    assert (space.gradient(biased) - space.exact()).abs().max() > 1e-2


@each_size
def test_reward_to_go_is_unbiased(space):
    rewards = torch.where(space.mask, draw(len(space.theta), V, seed=5)[space.prefix_index, space.y], 0)
    exact = space.gradient((space.probability() * rewards.sum(1)).sum())
    for weights in (return_to_go(rewards[None], 1.0)[0], rewards.sum(1, keepdim=True)):
        terms = torch.where(space.mask, weights * space.logp(), 0).sum(1)
        assert_near(space.gradient((space.probability().detach() * terms).sum()), exact)
    immediate_terms = torch.where(space.mask, return_to_go(rewards[None], 0.0)[0] * space.logp(), 0).sum(1)
    bias = (space.gradient((space.probability().detach() * immediate_terms).sum()) - exact).abs().max()
    assert bias < 1e-12 if space.y.shape[1] == 1 else bias > 1e-2


# --- groups: every G-tuple of sequences -----------------------------------------------------------------------


def groups_of(space, G):
    """Return every tuple of G sequences as a row of indices, and the probability of each tuple."""
    index = torch.tensor(list(product(range(len(space.y)), repeat=G)))
    return index, space.probability().detach()[index].prod(1)


def expected_group_gradient(space, G, advantages_of):
    index, probability = groups_of(space, G)
    advantages = advantages_of(space.rewards[index])  # each tuple is a group, so P = N^G
    seq_logp = sequence_logprob(space.logp(), space.mask)[index]
    return space.gradient((probability * (advantages * seq_logp).mean(1)).sum())


@pytest.mark.parametrize("G", [2, 3])
@pytest.mark.parametrize("space", [SequenceSpace(2), SequenceSpace(2, 0)], ids=["None", "0"])
def test_group_advantage_gradients_over_all_groups(space, G):
    assert_near(expected_group_gradient(space, G, rloo_advantages), space.exact())
    centred = expected_group_gradient(space, G, lambda r: group_advantages(r, scale="none"))
    assert_near(centred, space.exact() * (G - 1) / G)
    scaled = expected_group_gradient(space, G, group_advantages)
    assert torch.nn.functional.cosine_similarity(scaled.flatten(), space.exact().flatten(), 0) < 1 - 1e-3
    raw = expected_group_gradient(space, G, lambda r: r)
    assert_near(raw, space.exact())


def test_advantages_of_two_completions_divided_by_their_deviation_raise_the_probability_of_the_better_one():
    """With G = 2 and the population std, an advantage is the sign of the difference of the rewards."""
    space = SequenceSpace(2)
    gradient = expected_group_gradient(space, 2, lambda r: group_advantages(r, ddof=0, eps=1e-13))
    probability, r = space.probability(), space.rewards
    wins = torch.sign(r[:, None] - r[None, :]).detach()
    won = (probability[:, None] * probability.detach()[None, :] * wins).sum()
    assert_near(gradient, space.gradient(won), 1e-9)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_the_first_step_of_every_loss_is_the_policy_gradient(loss_type, level):
    """Equal lengths, leave-one-out advantages: it is minus the exact gradient, times the aggregation's factor."""
    space, G, T, T_max = SequenceSpace(2), 2, 2, 5
    index, probability = groups_of(space, G)
    advantages, logp = rloo_advantages(space.rewards[index]), space.logp()
    losses = [
        policy_loss(
            logp[i], a, space.mask[i], loss_type=loss_type, importance_sampling_level=level,
            epsilon_high=5.0, max_completion_length=T_max,
        )[0]
        for i, a in zip(index, advantages, strict=True)
    ]  # fmt: skip
    factor = {"luspo": 1.0, "dr_grpo": 1 / T_max}.get(loss_type, 1 / T)
    assert_near(space.gradient((probability * torch.stack(losses)).sum()), -factor * space.exact())


# --- off-policy -----------------------------------------------------------------------------------------------


def test_the_product_of_ratios_corrects_for_another_sampler():
    space = SequenceSpace(2)
    old = space.probability(space.old)
    weight = importance_ratio(space.logp(), space.logp(space.old), space.mask).prod(1)
    assert_near((old * weight).sum(), torch.ones(()).double())
    assert_near(space.gradient((old * weight * space.rewards).sum()), space.exact())
    normalised = importance_ratio(space.logp(), space.logp(space.old), space.mask, "sequence")[:, 0]
    assert abs((old * normalised).sum().item() - 1) > 1e-2, "GSPO's length-normalised ratio is no importance weight"


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dapo", "luspo"])
def test_unclipped_off_policy_loss_has_the_exact_gradient_at_one_token(loss_type):
    space = SequenceSpace(1)
    losses = space.row_losses(space.rewards, loss_type=loss_type, epsilon=1.0, epsilon_high=math.inf)
    assert_near(space.gradient((space.probability(space.old) * losses).sum()), -space.exact())
    clipped = space.row_losses(space.rewards, loss_type=loss_type)
    assert (space.gradient((space.probability(space.old) * clipped).sum()) + space.exact()).abs().max() > 1e-2
