"""Log-probabilities, entropy and completion mask: against literal loops, values and gradients."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.logprobs import chunked_token_logprobs, completion_mask, token_entropy, token_logprobs
from tests.support import oracles
from tests.support.agreement import assert_agree, assert_near, draw, draw_integers, few_examples, many_examples, seeds

shapes = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(2, 5))
temperatures = st.sampled_from([0.3, 1.0, 2.5])


@many_examples
@given(shapes, seeds, temperatures, st.sampled_from([0.0, 1.0, 30.0]))
def test_token_logprobs_equal_those_of_literal_loops(shape, seed, temperature, scale):
    ids = draw_integers(shape[:2], shape[2], seed)
    assert_agree(
        lambda x: token_logprobs(x, ids, temperature),
        lambda x: oracles.token_logprobs(x, ids, temperature),
        draw(*shape, seed=seed, scale=scale),
    )


@many_examples
@given(shapes, seeds, temperatures, st.sampled_from([0.0, 1.0, 30.0]))
def test_token_entropy_equals_that_of_literal_loops(shape, seed, temperature, scale):
    assert_agree(
        lambda x: token_entropy(x, temperature),
        lambda x: oracles.token_entropy(x, temperature),
        draw(*shape, seed=seed, scale=scale),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_token_logprobs_and_entropy_of_extreme_logits(dtype):
    logits = torch.tensor([[[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4], [1e4, 1e4, -1e4]]], dtype=dtype)
    ids = torch.tensor([[1, 0, 0]])
    tolerance = 1e-9 if dtype is torch.float64 else 1e-3
    assert_agree(
        lambda x: token_logprobs(x, ids), lambda x: oracles.token_logprobs(x, ids), logits, tolerance=tolerance
    )
    assert_agree(token_entropy, oracles.token_entropy, logits, tolerance=tolerance)
    expected = torch.tensor([[-2e4, -math.log(3), -math.log(2)]], dtype=dtype)
    torch.testing.assert_close(token_logprobs(logits, ids), expected, rtol=1e-7, atol=tolerance)


@few_examples
@given(shapes, seeds)
def test_token_logprobs_and_entropy_ranges_and_invariances(shape, seed):
    logits, ids = draw(*shape, seed=seed, scale=3.0), draw_integers(shape[:2], shape[2], seed)
    logp, entropy = token_logprobs(logits, ids), token_entropy(logits)
    assert (logp <= 0).all() and (entropy >= 0).all() and (entropy <= math.log(shape[2]) + 1e-12).all()
    shift = draw(*shape[:2], 1, seed=seed + 1, scale=5.0)
    assert_near(token_logprobs(logits + shift, ids), logp)
    every_token = [token_logprobs(logits, torch.full_like(ids, v)).exp() for v in range(shape[2])]
    assert_near(sum(every_token), torch.ones(shape[:2], dtype=torch.float64))


def test_half_precision_is_lifted_before_the_softmax():
    logits = draw(2, 3, 50, seed=0, scale=5.0).bfloat16()
    ids = draw_integers((2, 3), 50, 0)
    for ours, lifted in [
        (token_logprobs(logits, ids), token_logprobs(logits.float(), ids)),
        (token_entropy(logits), token_entropy(logits.float())),
    ]:
        assert ours.dtype is torch.float32
        assert torch.equal(ours, lifted)


# --- the completion mask --------------------------------------------------------------------------------------


@many_examples
@given(st.lists(st.lists(st.integers(0, 2), min_size=5, max_size=5), min_size=1, max_size=4), st.integers(0, 3))
def test_completion_mask_equals_that_of_a_literal_loop(rows, eos):
    ids = torch.tensor(rows)
    mask = completion_mask(ids, eos)
    assert mask.dtype is torch.bool
    assert torch.equal(mask, oracles.completion_mask(ids, eos))


def test_completion_mask_by_hand():
    eos = pad = 9
    ids = torch.tensor(
        [
            [1, 2, eos, pad, pad],  # the first end token counts; equal padding tokens do not
            [eos, pad, pad, pad, pad],  # a completion of its end token alone
            [1, 2, 3, 4, 5],  # cut off: every token counts
            [1, eos, 3, eos, 5],  # tokens after the first end token never count
        ]
    )
    assert completion_mask(ids, eos).sum(1).tolist() == [3, 1, 5, 2]
    assert completion_mask(ids, [9, 2]).sum(1).tolist() == [2, 1, 2, 2]
    assert completion_mask(ids[:, :0], eos).shape == (4, 0)


def test_logprobs_refuse_wrong_arguments_by_name():
    logits, ids = torch.zeros(1, 2, 4), torch.zeros(1, 2, dtype=torch.long)
    hidden, weight = torch.zeros(1, 2, 3), torch.zeros(4, 3)
    for temperature in (0.0, -1.0, math.nan):
        for call in (
            lambda t: token_logprobs(logits, ids, t),
            lambda t: token_entropy(logits, t),
            lambda t: chunked_token_logprobs(hidden, weight, ids, t),
        ):
            with pytest.raises(ValueError, match="temperature"):
                call(temperature)
    for token in (-100, -1, 4):  # outside the vocabulary
        wrong = torch.tensor([[0, token]])
        with pytest.raises((RuntimeError, IndexError)):
            token_logprobs(logits, wrong)
        with pytest.raises((RuntimeError, IndexError)):
            chunked_token_logprobs(hidden, weight, wrong)
