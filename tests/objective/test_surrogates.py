"""Ratio and surrogates: against literal loops in value and gradient, and by their properties."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.objective import clipped_surrogate, gspo_token_ratio, importance_ratio, sapo_surrogate, vespo_surrogate
from tests.support import oracles
from tests.support.agreement import assert_agree, assert_near, batch, draw, many, ragged_mask, seeds

shapes = st.tuples(st.integers(1, 4), st.integers(1, 4))
levels = st.sampled_from(["token", "sequence"])
distances = st.sampled_from([0.0, 0.1, 1.0, 6.0])


@many
@given(shapes, seeds, levels, distances)
def test_ratio_is_the_loops(shape, seed, level, distance):
    logp, old, _, _, mask = batch(*shape, seed, distance)
    kept = mask if level == "token" else torch.ones_like(mask[:, :1])
    assert_agree(
        lambda x: importance_ratio(x, old, mask, level) * kept,
        lambda x: oracles.importance_ratio(x, old, mask, level) * kept,
        logp,
    )
    assert_agree(
        lambda x: gspo_token_ratio(x, old, mask) * mask, lambda x: oracles.gspo_token_ratio(x, old, mask) * mask, logp
    )
    of_sequence = importance_ratio(logp, old, mask, "sequence")
    assert_near(gspo_token_ratio(logp, old, mask), of_sequence.expand_as(mask))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_first_step_has_ratio_exactly_one_and_a_gradient(level, dtype):
    logp = (-30 * draw(3, 5, seed=0).abs()).to(dtype).requires_grad_()
    ratio = importance_ratio(logp, logp, ragged_mask(3, 5, 0), level)
    assert (ratio == 1).all()
    ratio.sum().backward()
    assert logp.grad.abs().sum() > 0, "the old policy's gradient is stopped, the current one's is not"


@many
@given(shapes, seeds, distances, st.sampled_from([(0.2, None), (0.2, 0.28), (0.0, 0.0), (1.0, 3.0)]), st.booleans())
def test_surrogate_is_the_loops(shape, seed, distance, clip, bounded):
    ratio = draw(*shape, seed=seed, scale=distance).exp()
    delta = 1 + (clip[0] if clip[1] is None else clip[1]) + 0.7 if bounded else None
    assert_agree(
        lambda r, a: clipped_surrogate(r, a, *clip, delta),
        lambda r, a: oracles.clipped_surrogate(r, a, *clip, delta),
        ratio,
        draw(*shape, seed=seed + 1),
    )


@pytest.mark.parametrize("a", [-2.0, -0.5, 0.0, 0.5, 2.0])
def test_smooth_surrogates_go_by_the_sign_of_the_advantage_and_not_by_its_size(a):
    logp, old, mask = draw(3, 4, seed=0), draw(3, 4, seed=1), ragged_mask(3, 4, 2)
    advantages = torch.full((3,), a, dtype=torch.float64)
    tau = 1.3 if a > 0 else 1.7
    gate = [[4 / tau / (1 + math.exp(tau * (1 - math.exp(x)))) for x in row] for row in (logp - old).tolist()]
    gate = torch.tensor(gate, dtype=torch.float64)
    ratio = (logp - old).exp().requires_grad_()
    ours = sapo_surrogate(ratio, advantages, tau_pos=1.3, tau_neg=1.7)
    assert_near(ours, a * gate)
    (gradient,) = torch.autograd.grad(ours.sum(), ratio)
    assert_near(gradient, a * tau * gate * (1 - tau * gate / 4))  # with s = tau gate / 4 it is 4 a s (1 - s)
    weights = torch.tensor([oracles.vespo_weight(logp, old, mask, b, a) for b in range(3)], dtype=torch.float64)
    x = logp.clone().requires_grad_()
    surrogate = vespo_surrogate(x, old, mask, advantages)
    assert_near(surrogate, a * weights[:, None] * logp)
    (gradient,) = torch.autograd.grad(surrogate.sum(), x)
    assert_near(gradient, a * weights[:, None].expand(3, 4))
