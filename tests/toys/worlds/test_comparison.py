"""Tests of the measures of losses, against closed forms and literal loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.objective import LOSS_TYPES
from grpo_lab.toys.worlds.comparison import gradient_coefficient, gradient_weight, token_weights
from tests.support.agreement import assert_near, draw_batch, few_examples, seeds

loss_types = st.sampled_from(LOSS_TYPES)


@few_examples
@given(seeds)
def test_coefficient_is_the_closed_form_of_the_clipped_loss(seed):
    logp, old, _, advantages, mask = draw_batch(3, 5, seed)
    leaf = logp.clone().requires_grad_()
    coefficient, loss, metrics = gradient_coefficient(leaf, advantages, mask, old, loss_type="dapo")
    assert leaf.grad is None
    for b in range(3):
        for t in range(5):
            r, a = (logp - old)[b, t].exp().item(), advantages[b].item()
            has_gradient = r < 1.2 if a > 0 else r > 0.8
            expected = a * r * has_gradient * mask[b, t].item() / max(mask.sum().item(), 1)
            assert coefficient[b, t].item() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert isinstance(loss, float)
    assert "ratio" in metrics


@few_examples
@given(seeds, loss_types)
def test_weight_is_one_for_a_policy_that_has_not_moved(seed, loss_type):
    logp, _, _, advantages, mask = draw_batch(3, 4, seed)
    weight = gradient_weight(logp, advantages, mask, logp, loss_type=loss_type, max_completion_length=4)
    assert_near(weight, (mask & (advantages != 0)[:, None]).double())


@few_examples
@given(seeds)
def test_weights_of_gradients_in_closed_form(seed):
    logp, old, _, advantages, mask = draw_batch(3, 4, seed)
    ratio, a = (logp - old).exp(), advantages[:, None]
    has_weight = mask & (a != 0)
    cispo = gradient_weight(logp, advantages, mask, old, loss_type="cispo", epsilon_high=5.0)
    assert_near(cispo, torch.where(has_weight, ratio.clamp(max=5), 0))
    tau = 1 + 0.05 * (a <= 0).double()
    slope = 4 * torch.sigmoid(tau * (ratio - 1)) * torch.sigmoid(-tau * (ratio - 1)) * ratio
    sapo = gradient_weight(logp, advantages, mask, old, loss_type="sapo")
    assert_near(sapo, torch.where(has_weight, slope, 0), 1e-9)


def test_weights_of_a_batch_of_two():
    mask = torch.tensor([[True, False, False, False], [True, True, True, False]])
    expected = {"grpo": (1 / 2, 1 / 6), "dr_grpo": (1 / 20, 1 / 20), "dapo": (1 / 4, 1 / 4), "bnpo": (1 / 4, 1 / 4)}
    for loss_type, (short, long) in (expected | {"luspo": (1 / 2, 1 / 2)}).items():
        weights = token_weights(mask, loss_type, max_completion_length=10)
        assert_near(weights, torch.tensor([[short, 0, 0, 0], [long, long, long, 0]]), 1e-6)
