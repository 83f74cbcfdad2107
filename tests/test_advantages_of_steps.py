"""Advantages of tokens, from rewards of steps: against literal loops, and by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.advantages import group_advantages, process_advantages, return_to_go, return_to_go_advantages
from tests.support import oracles
from tests.support.agreement import assert_agree, assert_near, draw, few, many, seeds

worlds = st.tuples(st.integers(1, 2), st.integers(2, 3), st.integers(1, 4))


@many
@given(worlds, seeds, st.sampled_from([1e-4, 0.3]), st.sampled_from([0.2, 0.6, 1.0]))
def test_process_advantages_are_the_loops(shape, seed, eps, share):
    rewards = draw(*shape, seed=seed)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share
    assert_near(process_advantages(rewards, mask, eps), oracles.process_advantages(rewards, mask, eps))


@few
@given(worlds, seeds, st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_returns_are_the_loops(shape, seed, gamma):
    rewards = draw(*shape, seed=seed)
    assert_agree(lambda r: return_to_go(r, gamma), lambda r: oracles.return_to_go(r, gamma), rewards)
    assert_near(return_to_go_advantages(rewards, gamma), oracles.return_to_go_advantages(rewards, gamma))


def test_process_by_hand():
    rewards = torch.tensor([[[0.0, 1.0, 0.0, 3.0], [0.0, 2.0, 7.0, 7.0]]], dtype=torch.float64)
    mask = torch.tensor([[[False, True, False, True], [False, True, False, False]]])
    one = 1 / (1 + 1e-4)  # the three steps 1, 3, 2 have mean 2 and sample std 1
    want = torch.tensor([[[0.0, 0.0, one, one], [0.0, 0.0, 0.0, 0.0]]], dtype=torch.float64)
    assert_near(process_advantages(rewards, mask), want)


@few
@given(worlds, seeds)
def test_one_step_is_outcome_supervision(shape, seed):
    P, G, T = shape
    outcome = draw(P, G, seed=seed)
    last = torch.randint(0, T, (P, G, 1), generator=torch.Generator().manual_seed(seed))
    mask = torch.arange(T) == last
    advantages = process_advantages(outcome[..., None].expand(P, G, T), mask)
    want = torch.where(torch.arange(T) <= last, group_advantages(outcome)[..., None], 0)
    assert_near(advantages, want)


def test_process_reads_only_where_a_step_ends():
    rewards, mask = draw(2, 3, 5, seed=0), torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(1)) < 0.5
    garbage = torch.where(mask, rewards, torch.nan)
    assert torch.equal(process_advantages(garbage, mask), process_advantages(rewards, mask))
    assert (process_advantages(garbage, torch.zeros_like(mask)) == 0).all()


def test_returns_by_hand():
    rewards = torch.tensor([[[1.0, 0.0, 4.0], [0.0, 2.0, 0.0]]], dtype=torch.float64)
    assert torch.equal(return_to_go(rewards, 0.0), rewards)
    assert return_to_go(rewards, 1.0).tolist() == [[[5.0, 4.0, 4.0], [2.0, 2.0, 0.0]]]
    assert return_to_go(rewards, 0.5).tolist() == [[[2.0, 2.0, 4.0], [1.0, 2.0, 0.0]]]


def test_step_rewards_that_carry_a_gradient_pass_it_on():
    """A differentiable reward is rare, and nothing in the formulas forbids it."""
    rewards, mask = draw(2, 3, 4, seed=0), draw(2, 3, 4, seed=1) > -0.5
    assert_agree(
        lambda r: process_advantages(r, mask), lambda r: oracles.process_advantages(r, mask), rewards, tolerance=1e-9
    )


@pytest.mark.parametrize("gamma", [-0.1, 1.1, math.nan])
def test_bad_gamma(gamma):
    for function in (return_to_go, return_to_go_advantages):
        with pytest.raises(ValueError, match="gamma"):
            function(torch.zeros(1, 2, 3), gamma)


def test_bad_process_input():
    rewards, mask = torch.zeros(1, 2, 3), torch.ones(1, 2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="eps"):
        process_advantages(rewards, mask, eps=0.0)
    rewards[0, 0, 0] = math.nan
    with pytest.raises(ValueError, match="step_rewards"):
        process_advantages(rewards, mask)
