"""The functions of the policy gradient, compared with literal loops; test_enumeration proves the whole gradient."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.policy_gradient import (
    enumerate_sequences,
    expected_reward,
    reinforce_loss,
    score_function_objective,
    sequence_logprob,
)
from tests.support.agreement import assert_agree, assert_near, draw, few_examples, ragged_mask, seeds
from tests.support.oracles import table, total


@few_examples
@given(st.tuples(st.integers(1, 4), st.integers(1, 4)), seeds)
def test_sequence_logprob_equals_that_of_a_literal_loop(shape, seed):
    logp, mask = draw(*shape, seed=seed), ragged_mask(*shape, seed)
    B, T = shape
    assert_agree(
        lambda x: sequence_logprob(x, mask),
        lambda x: table([total(x[b, t] for t in range(T) if mask[b, t]) for b in range(B)]),
        logp,
    )
    assert_near(sequence_logprob(torch.where(mask, logp, torch.nan), mask), sequence_logprob(logp, mask))


@few_examples
@given(st.integers(1, 5), seeds)
def test_policy_gradient_losses_and_objectives_equal_those_of_literal_loops(N, seed):
    seq_logp, weights = -draw(N, seed=seed).abs(), draw(N, seed=seed + 1)
    for ours, oracle in [
        (reinforce_loss, lambda x, w: -total(w[i] * x[i] for i in range(N)) / N),
        (expected_reward, lambda x, w: total(torch.exp(x[i]) * w[i] for i in range(N))),
        (score_function_objective, lambda x, w: total(torch.exp(x[i]).detach() * w[i] * x[i] for i in range(N))),
    ]:
        assert_agree(lambda x, f=ours: f(x, weights), lambda x, f=oracle: f(x, weights), seq_logp)


def test_the_gradient_never_flows_into_the_weights():
    seq_logp, weights = draw(3, seed=0).requires_grad_(), draw(3, seed=1).requires_grad_()
    reinforce_loss(seq_logp, weights).backward()
    assert weights.grad is None
    assert_near(seq_logp.grad, -weights.detach() / 3)


def test_enumeration_lists_everything_once_and_in_order():
    for vocabulary, length in [(1, 1), (1, 3), (2, 1), (2, 3), (3, 2), (4, 1)]:
        sequences = enumerate_sequences(vocabulary, length)
        assert sequences.dtype is torch.int64
        assert sequences.tolist() == [list(y) for y in itertools.product(range(vocabulary), repeat=length)]
    for vocabulary, length, named in [(0, 2, "vocabulary is 0"), (2, 0, "length is 0")]:
        with pytest.raises(ValueError, match=named):
            enumerate_sequences(vocabulary, length)
