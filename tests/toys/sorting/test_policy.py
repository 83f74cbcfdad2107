"""Tests of the sorting policy, its samples and their log-probabilities against literal loops."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.toys.sorting import position_logprobs, response_logprobs, sample_responses
from tests.support import oracles
from tests.support.agreement import assert_agree, draw, draw_integers, few_examples, seeds


def weights_of(S, T, V, D, seed):
    return draw(S, V, D, seed=seed), draw(S, T, D, D, seed=seed + 1), draw(S, T, D, D, seed=seed + 2)


def policy_loop(prompts, embedding, encode, decode):
    S, P, T = prompts.shape
    _, V, D = embedding.shape
    logp = []
    for s, p in itertools.product(range(S), range(P)):
        hidden = [
            oracles.total(embedding[s, prompts[s, p, t], i] * encode[s, t, i, j] for t in range(T) for i in range(D))
            for j in range(D)
        ]
        for t in range(T):
            out = [oracles.total(hidden[j] * decode[s, t, j, i] for j in range(D)) for i in range(D)]
            logits = [oracles.total(out[i] * embedding[s, v, i] for i in range(D)) for v in range(V)]
            logp.append(oracles.log_softmax(logits))
    return oracles.table(logp).reshape(S, P, T, V)


@pytest.mark.parametrize("shape", [(1, 1, 2, 2, 1), (2, 3, 3, 4, 2), (3, 2, 2, 3, 4)])
def test_position_logprobs_equal_a_literal_loop_in_value_and_gradient(shape):
    S, P, T, V, D = shape
    prompts = draw_integers((S, P, T), V, seed=3)
    assert_agree(
        lambda *w: position_logprobs(prompts, *w), lambda *w: policy_loop(prompts, *w), *weights_of(S, T, V, D, seed=0)
    )


def test_position_logprobs_refuse_numbers_outside_the_vocabulary():
    for wrong in (-1, 4):
        with pytest.raises(ValueError, match=f"prompts holds numbers from .*{wrong}"):
            position_logprobs(torch.tensor([[[1, wrong]]]), *weights_of(1, 2, 4, 3, seed=0))


def test_samples_have_the_probabilities_of_the_policy():
    logp = torch.tensor([[[[0.25, 0.5, 0.25], [0.125, 0.125, 0.75]]]], dtype=torch.float64).log()  # S P T V
    uniform = (torch.arange(8, dtype=torch.float64) + 0.5) / 8
    responses = sample_responses(logp, uniform.reshape(1, 1, 8, 1).expand(-1, -1, -1, 2))
    assert responses[0, 0].T.tolist() == [[0, 0, 1, 1, 1, 1, 2, 2], [0, 1, 2, 2, 2, 2, 2, 2]]
    edge = logp.exp()[..., 0][:, :, None]  # a draw of exactly F belongs to the next number
    assert sample_responses(logp, edge).flatten().tolist() == [1, 1]


@few_examples
@given(st.tuples(*[st.integers(1, 3)] * 5), seeds)
def test_every_prompt_and_seed_draws_from_its_own_row(shape, seed):
    S, P, G, T, V = shape
    logp = draw(S, P, T, V, seed=seed).log_softmax(-1)
    uniform = torch.rand((S, P, G, T), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    responses = sample_responses(logp, uniform)
    for s, p, i, t in itertools.product(range(S), range(P), range(G), range(T)):
        remaining, v = uniform[s, p, i, t].item(), 0
        while v < V - 1 and remaining >= math.exp(logp[s, p, t, v]):
            remaining -= math.exp(logp[s, p, t, v])
            v += 1
        assert responses[s, p, i, t] == v


@few_examples
@given(st.tuples(*[st.integers(1, 3)] * 5), seeds)
def test_response_logprobs_equal_a_literal_loop_in_value_and_gradient(shape, seed):
    S, P, G, T, V = shape
    responses = draw_integers((S, P, G, T), V, seed)
    assert_agree(
        lambda logp: response_logprobs(logp, responses),
        lambda logp: oracles.table(
            [
                [[[logp[s, p, t, responses[s, p, i, t]] for t in range(T)] for i in range(G)] for p in range(P)]
                for s in range(S)
            ]
        ),
        draw(S, P, T, V, seed=seed),
    )
