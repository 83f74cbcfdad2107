"""Ratio and surrogates: compared with literal loops in value and gradient, and tested for their properties."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.objective import clipped_surrogate, gspo_token_ratio, importance_ratio, vespo_surrogate
from tests.support import oracles
from tests.support.agreement import assert_agree, assert_near, draw, draw_batch, many_examples, ragged_mask, seeds

shapes = st.tuples(st.integers(1, 4), st.integers(1, 4))
levels = st.sampled_from(["token", "sequence"])
distances = st.sampled_from([0.0, 0.1, 1.0, 6.0])


@many_examples
@given(shapes, seeds, levels, distances)
def test_importance_ratio_equals_that_of_literal_loops(shape, seed, level, distance):
    logp, old, _, _, mask = draw_batch(*shape, seed, distance)
    compared_mask = mask if level == "token" else torch.ones_like(mask[:, :1])
    assert_agree(
        lambda x: importance_ratio(x, old, mask, level) * compared_mask,
        lambda x: oracles.importance_ratio(x, old, mask, level) * compared_mask,
        logp,
    )
    assert_agree(
        lambda x: gspo_token_ratio(x, old, mask) * mask, lambda x: oracles.gspo_token_ratio(x, old, mask) * mask, logp
    )
    sequence_ratio = importance_ratio(logp, old, mask, "sequence")
    assert_near(gspo_token_ratio(logp, old, mask), sequence_ratio.expand_as(mask))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_first_step_has_ratio_exactly_one_and_a_gradient(level, dtype):
    logp = (-30 * draw(3, 5, seed=0).abs()).to(dtype).requires_grad_()
    ratio = importance_ratio(logp, logp, ragged_mask(3, 5, 0), level)
    assert (ratio == 1).all()
    ratio.sum().backward()
    assert logp.grad.abs().sum() > 0, "the old policy's gradient is stopped, the current one's is not"


@many_examples
@given(shapes, seeds, distances, st.sampled_from([(0.2, None), (0.2, 0.28), (0.0, 0.0), (1.0, 3.0)]), st.booleans())
def test_clipped_surrogate_equals_that_of_literal_loops(shape, seed, distance, clip, bounded):
    ratio = draw(*shape, seed=seed, scale=distance).exp()
    delta = 1 + (clip[0] if clip[1] is None else clip[1]) + 0.7 if bounded else None
    assert_agree(
        lambda r, a: clipped_surrogate(r, a, *clip, delta),
        lambda r, a: oracles.clipped_surrogate(r, a, *clip, delta),
        ratio,
        draw(*shape, seed=seed + 1),
    )


def test_vespo_clamps_the_sequence_ratio_at_1e_8():
    logp = torch.tensor([[-30.0]], dtype=torch.float64)
    clamped = vespo_surrogate(logp, 0 * logp, logp < 0, torch.ones(1, dtype=torch.float64), k_pos=2.0, lambda_pos=3.0)
    assert clamped.item() == pytest.approx(-30 * math.exp(3) * 1e-16, rel=1e-7, abs=0)
