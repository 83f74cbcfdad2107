"""Tests of update weights, losses and the KL penalty of the sorting task against literal loops."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.advantages import group_advantages
from grpo_lab.toys.sorting import LOSSES, UPDATE_WEIGHTS, kl_penalty, surrogate_loss, update_weights
from tests.support import oracles
from tests.support.agreement import assert_agree, draw, draw_integers, few_examples, seeds


def test_update_weights_are_those_of_advantages():
    rewards = draw_integers((4, 5), 8, seed=2).float()
    expected_weights = [rewards, group_advantages(rewards, scale="none"), group_advantages(rewards)]
    for mode, expected in zip(UPDATE_WEIGHTS, expected_weights, strict=True):
        assert torch.equal(update_weights(rewards, mode), expected)


def loss_loop(logp, old_logp, advantages, loss, epsilon):
    B, T = logp.shape
    terms = []
    for b, t in itertools.product(range(B), range(T)):
        ratio = torch.exp(logp[b, t] - old_logp[b, t].detach())
        if loss == "naive":
            terms.append(logp[b, t] * advantages[b].detach())
        elif loss == "unclipped":
            terms.append(ratio * advantages[b])
        else:
            terms.append(oracles.surrogate_term(ratio, advantages[b], epsilon, epsilon, None))
    return -oracles.total(terms) / (B * T)


@pytest.mark.parametrize("loss", LOSSES)
@few_examples
@given(B=st.integers(1, 4), T=st.integers(1, 4), seed=seeds, epsilon=st.sampled_from([0.1, 0.2, 0.5]))
def test_sorting_losses_equal_literal_loops_in_value_and_gradient(loss, B, T, seed, epsilon):
    old, advantages = -draw(B, T, seed=seed).abs(), draw(B, seed=seed + 2)
    logp = old + draw(B, T, seed=seed + 1, scale=0.4)
    assert_agree(
        lambda x: surrogate_loss(x, old, advantages, loss, epsilon),
        lambda x: loss_loop(x, old, advantages, loss, epsilon),
        logp,
    )


@few_examples
@given(B=st.integers(1, 4), T=st.integers(1, 4), seed=seeds, beta=st.sampled_from([0.0, 0.3, 2.0]))
def test_kl_penalty_equals_a_literal_loop_in_value_and_gradient(B, T, seed, beta):
    ref = -draw(B, T, seed=seed).abs()

    def loop(x):
        terms = [oracles.kl_term(x[b, t], ref[b, t], "k3") for b in range(B) for t in range(T)]
        return beta * oracles.total(terms) / (B * T)

    assert_agree(lambda x: kl_penalty(x, ref, beta), loop, ref + draw(B, T, seed=seed + 1, scale=0.5))
