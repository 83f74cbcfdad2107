"""KL by exact enumeration: the expectation of each estimator, and the KL whose gradient it has in a loss."""

import pytest
import torch

from grpo_lab.kl import ESTIMATORS, kl_estimate, kl_exact, kl_in_reward
from grpo_lab.objective import importance_ratio
from grpo_lab.policy_gradient import sequence_logprob
from tests.support.agreement import assert_near
from tests.support.enumerated import SequenceSpace, V, each_size


def kl_of_states(space, forward=False):
    """Return the KL of the next token, summed over positions; the probabilities of prefixes carry no gradient."""
    logits, ref_logits = space.theta[space.prefix_index], space.ref[space.prefix_index]
    kl = kl_exact(ref_logits, logits) if forward else kl_exact(logits, ref_logits)
    return (space.probability().detach() * torch.where(space.mask, kl, 0).sum(1)).sum()


def expected_estimate(space, estimator, weight=1.0):
    terms = torch.where(space.mask, weight * kl_estimate(space.logp(), space.logp(space.ref), estimator), 0)
    return (space.probability().detach() * terms.sum(1)).sum()


@each_size
def test_kl_estimators_as_values(space):
    p, seq = space.probability().detach(), lambda x: sequence_logprob(space.logp(x), space.mask)
    exact = (p * (seq(None) - seq(space.ref))).sum().detach()
    assert_near(kl_of_states(space).detach(), exact)
    for estimator in ("k1", "k3", "k3+"):
        assert_near(expected_estimate(space, estimator).detach(), exact)
    assert abs(expected_estimate(space, "k2").item() - exact.item()) > 1e-2


@each_size
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_kl_estimators_as_loss_terms(space, estimator):
    reverse, forward = space.gradient(kl_of_states(space)), space.gradient(kl_of_states(space, forward=True))
    assert (reverse - forward).abs().max() > 1e-2, "the two KLs pull differently here, so the table can be read"
    expected = {"k1": torch.zeros_like(reverse), "k2": reverse, "k3": forward, "k3+": reverse}[estimator]
    assert_near(space.gradient(expected_estimate(space, estimator)), expected)


@each_size
def test_k3_weighted_by_the_ratio_has_the_gradient_of_the_kl(space):
    ratio = importance_ratio(space.logp(), space.logp(), space.mask)  # has the value 1, and a gradient
    assert (ratio == 1).all()
    weighted = expected_estimate(space, "k3", ratio)
    assert_near(weighted.detach(), kl_of_states(space).detach())
    assert_near(space.gradient(weighted), space.gradient(kl_of_states(space)))


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
    space = SequenceSpace(1)
    if on_policy:
        space.old = space.theta.detach().clone()
    losses = space.row_losses(torch.zeros(V).double(), beta=1.0, **keywords)
    got = space.gradient((space.probability(space.old) * losses).sum())
    reverse, forward = space.gradient(kl_of_states(space)), space.gradient(kl_of_states(space, forward=True))
    expected_gradients = {"reverse": reverse, "forward": forward, "zero": torch.zeros_like(got)}
    if exact == "neither":
        assert all((got - expected).abs().max() > 1e-2 for expected in expected_gradients.values())
    else:
        assert_near(got, expected_gradients[exact])


@each_size
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_kl_in_the_reward_penalises_the_kl_of_whole_sequences(space, beta):
    seq = [sequence_logprob(space.logp(x), space.mask) for x in (None, space.ref)]
    exact = space.gradient((space.probability() * (space.rewards - beta * (seq[0] - seq[1]))).sum())
    penalised = kl_in_reward(space.rewards, space.logp(), space.logp(space.ref), space.mask, beta)
    seq_logp = sequence_logprob(space.logp(), space.mask)
    assert_near(space.gradient((space.probability().detach() * penalised * seq_logp).sum()), exact)


def test_the_kl_of_a_sequence_has_more_gradient_than_its_tokens():
    """k2 in the loss has no gradient for steering to prefixes with a smaller KL; the KL in the reward has."""
    space = SequenceSpace(2)
    seq = [sequence_logprob(space.logp(x), space.mask) for x in (None, space.ref)]
    whole = space.gradient((space.probability() * (seq[0] - seq[1])).sum())
    assert (whole - space.gradient(kl_of_states(space))).abs().max() > 1e-2
