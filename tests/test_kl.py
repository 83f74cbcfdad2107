"""KL estimators and the exact KL: compared with literal loops, and tested for properties that all of them have."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.kl import ESTIMATORS, kl_estimate, kl_exact, kl_in_reward
from tests.support import oracles
from tests.support.agreement import assert_agree, assert_near, draw, few_examples, many_examples, ragged_mask, seeds

shapes = st.tuples(st.integers(1, 3), st.integers(1, 4))


@many_examples
@given(shapes, seeds, st.sampled_from(ESTIMATORS), st.sampled_from([0.0, 0.01, 1.0, 5.0]))
def test_kl_estimates_equal_those_of_literal_loops(shape, seed, estimator, distance):
    ref_logp = -draw(*shape, seed=seed).abs()
    assert_agree(
        lambda x: kl_estimate(x, ref_logp, estimator),
        lambda x: oracles.kl_estimate(x, ref_logp, estimator),
        ref_logp + draw(*shape, seed=seed + 1, scale=distance),
    )
    assert not kl_estimate(ref_logp, ref_logp.clone().requires_grad_(), estimator).requires_grad


@few_examples
@given(shapes, seeds, st.sampled_from([1e-9, 1e-3, 1.0, 20.0]))
def test_only_k1_can_be_negative(shape, seed, distance):
    logp = -draw(*shape, seed=seed).abs()
    ref_logp = logp + draw(*shape, seed=seed + 1, scale=distance)
    for name in ("k2", "k3", "k3+"):
        assert (kl_estimate(logp, ref_logp, name) >= 0).all()
        assert (kl_estimate(logp.float(), ref_logp.float(), name) >= 0).all()
    assert_near(kl_estimate(logp, ref_logp, "k3+"), kl_estimate(logp, ref_logp, "k3"))
    assert_near(kl_estimate(logp, ref_logp, "k1"), -kl_estimate(ref_logp, logp, "k1"))
    for name in ESTIMATORS:
        assert (kl_estimate(logp, logp.clone(), name) == 0).all()


def test_k3_keeps_its_digits_when_the_policies_are_close():
    d = torch.tensor([[1e-4]])  # float32: exp(d) - d - 1 would round to nothing
    assert kl_estimate(-d, torch.zeros(1, 1), "k3").item() == pytest.approx(5e-9, rel=0.05)


@many_examples
@given(st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(2, 5)), seeds, st.sampled_from([0.0, 1.0, 10.0]))
def test_exact_kl_equals_that_of_literal_loops(shape, seed, scale):
    assert_agree(
        kl_exact, oracles.kl_exact, draw(*shape, seed=seed, scale=scale), draw(*shape, seed=seed + 1, scale=scale)
    )


def test_exact_kl_of_extreme_logits():
    logits = torch.tensor([[[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4]]], dtype=torch.float64)
    ref_logits = torch.tensor([[[1e4, 0.0, -1e4], [1e4, 1e4, -1e4]]], dtype=torch.float64)
    assert_agree(kl_exact, oracles.kl_exact, logits, ref_logits, tolerance=1e-9)
    # The first pair has the same word with probability 1, so its KL is 0. In the second pair the policy gives half of
    # its probability to a word that the reference almost excludes.
    assert kl_exact(logits, ref_logits)[0].tolist() == pytest.approx([0.0, 1e4])


@many_examples
@given(st.tuples(st.integers(1, 3), st.integers(1, 4)), seeds, st.sampled_from([0.0, 0.1, 2.0]))
def test_kl_in_the_reward_equals_that_of_a_literal_loop(shape, seed, beta):
    rewards, logp, ref_logp = draw(shape[0], seed=seed), draw(*shape, seed=seed + 1), draw(*shape, seed=seed + 2)
    mask = ragged_mask(*shape, seed)
    expected = oracles.kl_in_reward(rewards, logp, ref_logp, mask, beta)
    penalised = kl_in_reward(rewards, logp.requires_grad_(), ref_logp, mask, beta)
    assert_near(penalised, expected)
    assert not penalised.requires_grad, "no gradient flows through the penalty"
    garbage = [torch.where(mask, x, torch.nan) for x in (logp, ref_logp)]
    assert_near(kl_in_reward(rewards, *garbage, mask, beta), expected)


def test_kl_functions_refuse_wrong_input():
    x = torch.zeros(1, 2)
    for name in ("k4", "K3", "", None):
        with pytest.raises((ValueError, TypeError), match="estimator"):
            kl_estimate(x, x, name)
    with pytest.raises(ValueError, match="beta"):
        kl_in_reward(torch.zeros(1), x, x, torch.ones(1, 2, dtype=torch.bool), -0.1)
