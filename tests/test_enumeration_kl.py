"""KL by exact enumeration: the expectation of each estimator, and the KL whose gradient it has in a loss."""

import pytest
import torch

from grpo_lab.kl import ESTIMATORS, kl_estimate, kl_exact, kl_in_reward
from grpo_lab.objective import importance_ratio
from grpo_lab.policy_gradient import sequence_logprob
from tests.support.agreement import assert_near
from tests.support.enumerated import V, World, everywhere


def kl_of_states(world, forward=False):
    """Return the KL of the next token, summed over positions; the probabilities of prefixes carry no gradient."""
    logits, ref_logits = world.theta[world.prefix], world.ref[world.prefix]
    kl = kl_exact(ref_logits, logits) if forward else kl_exact(logits, ref_logits)
    return (world.probability().detach() * torch.where(world.mask, kl, 0).sum(1)).sum()


def expected_estimate(world, estimator, weight=1.0):
    terms = torch.where(world.mask, weight * kl_estimate(world.logp(), world.logp(world.ref), estimator), 0)
    return (world.probability().detach() * terms.sum(1)).sum()


@everywhere
def test_kl_estimators_as_values(world):
    p, seq = world.probability().detach(), lambda x: sequence_logprob(world.logp(x), world.mask)
    exact = (p * (seq(None) - seq(world.ref))).sum().detach()
    assert_near(kl_of_states(world).detach(), exact)
    for estimator in ("k1", "k3", "k3+"):
        assert_near(expected_estimate(world, estimator).detach(), exact)
    assert abs(expected_estimate(world, "k2").item() - exact.item()) > 1e-2


@everywhere
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_kl_estimators_as_loss_terms(world, estimator):
    reverse, forward = world.gradient(kl_of_states(world)), world.gradient(kl_of_states(world, forward=True))
    assert (reverse - forward).abs().max() > 1e-2, "the two KLs pull differently here, so the table can be read"
    expected = {"k1": torch.zeros_like(reverse), "k2": reverse, "k3": forward, "k3+": reverse}[estimator]
    assert_near(world.gradient(expected_estimate(world, estimator)), expected)


@everywhere
def test_k3_weighted_by_the_ratio_has_the_gradient_of_the_kl(world):
    ratio = importance_ratio(world.logp(), world.logp(), world.mask)  # has the value 1, and a gradient
    assert (ratio == 1).all()
    weighted = expected_estimate(world, "k3", ratio)
    assert_near(weighted.detach(), kl_of_states(world).detach())
    assert_near(world.gradient(weighted), world.gradient(kl_of_states(world)))


@pytest.mark.parametrize(
    ("keywords", "on_policy", "exact"),
    [
        ({"kl_bias_correction": True}, True, "reverse"),
        ({"kl_bias_correction": True}, False, "reverse"),
        ({}, True, "forward"),
        ({"kl_estimator": "k1"}, True, "zero"),
        ({"kl_estimator": "k1", "kl_bias_correction": True}, False, "reverse"),
        ({"kl_estimator": "k2"}, True, "reverse"),
        ({"kl_estimator": "k3+"}, True, "reverse"),
        ({"kl_estimator": "k3"}, False, "neither"),
    ],
)
def test_the_kl_term_inside_the_loss(keywords, on_policy, exact):
    world = World(1)
    if on_policy:
        world.old = world.theta.detach().clone()
    losses = world.row_losses(torch.zeros(V).double(), beta=1.0, **keywords)
    got = world.gradient((world.probability(world.old) * losses).sum())
    reverse, forward = world.gradient(kl_of_states(world)), world.gradient(kl_of_states(world, forward=True))
    expected_gradients = {"reverse": reverse, "forward": forward, "zero": torch.zeros_like(got)}
    if exact == "neither":
        assert all((got - expected).abs().max() > 1e-2 for expected in expected_gradients.values())
    else:
        assert_near(got, expected_gradients[exact])


@everywhere
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_kl_in_the_reward_penalises_the_kl_of_whole_sequences(world, beta):
    seq = [sequence_logprob(world.logp(x), world.mask) for x in (None, world.ref)]
    exact = world.gradient((world.probability() * (world.rewards - beta * (seq[0] - seq[1]))).sum())
    penalised = kl_in_reward(world.rewards, world.logp(), world.logp(world.ref), world.mask, beta)
    seq_logp = sequence_logprob(world.logp(), world.mask)
    assert_near(world.gradient((world.probability().detach() * penalised * seq_logp).sum()), exact)


def test_the_kl_of_a_sequence_has_more_gradient_than_its_tokens():
    """k2 in the loss has no gradient for steering to prefixes with a smaller KL; the KL in the reward has."""
    world = World(2)
    seq = [sequence_logprob(world.logp(x), world.mask) for x in (None, world.ref)]
    whole = world.gradient((world.probability() * (seq[0] - seq[1])).sum())
    assert (whole - world.gradient(kl_of_states(world))).abs().max() > 1e-2
