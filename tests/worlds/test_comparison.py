"""What notebook 05 measures with: against closed forms and literal loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.objective import LOSS_TYPES
from grpo_lab.worlds.comparison import dual_clip_surrogate, push_in_parts, token_gate, token_push, token_weights
from tests.support.agreement import assert_near, batch, draw, few, seeds

loss_types = st.sampled_from(LOSS_TYPES)


@few
@given(seeds)
def test_push_is_the_closed_form_of_the_clipped_loss(seed):
    logp, old, _, advantages, mask = batch(3, 5, seed)
    leaf = logp.clone().requires_grad_()
    push, loss, metrics = token_push(leaf, advantages, mask, old, loss_type="dapo")
    assert leaf.grad is None
    for b in range(3):
        for t in range(5):
            r, a = (logp - old)[b, t].exp().item(), advantages[b].item()
            alive = r < 1.2 if a > 0 else r > 0.8
            want = a * r * alive * mask[b, t].item() / max(mask.sum().item(), 1)
            assert push[b, t].item() == pytest.approx(want, rel=1e-9, abs=1e-12)
    assert isinstance(loss, float) and "ratio" in metrics


@few
@given(seeds, loss_types)
def test_gate_is_one_for_a_policy_that_has_not_moved(seed, loss_type):
    logp, _, _, advantages, mask = batch(3, 4, seed)
    gate = token_gate(logp, advantages, mask, logp, loss_type=loss_type, max_completion_length=4)
    assert_near(gate, (mask & (advantages != 0)[:, None]).double())


@few
@given(seeds)
def test_gates_in_closed_form(seed):
    logp, old, _, advantages, mask = batch(3, 4, seed)
    ratio, a = (logp - old).exp(), advantages[:, None]
    counts = mask & (a != 0)
    cispo = token_gate(logp, advantages, mask, old, loss_type="cispo", epsilon_high=5.0)
    assert_near(cispo, torch.where(counts, ratio.clamp(max=5), 0))
    tau = 1 + 0.05 * (a <= 0).double()
    slope = 4 * torch.sigmoid(tau * (ratio - 1)) * torch.sigmoid(-tau * (ratio - 1)) * ratio
    assert_near(token_gate(logp, advantages, mask, old, loss_type="sapo"), torch.where(counts, slope, 0), 1e-9)


@few
@given(seeds, st.sampled_from([2.0, 3.0]))
def test_dual_clip_case_by_case(seed, c):
    ratio, advantages = draw(4, 5, seed=seed).exp(), draw(4, 1, seed=seed + 1)
    got = dual_clip_surrogate(ratio, advantages, c)
    for b in range(4):
        for t in range(5):
            r, a = ratio[b, t].item(), advantages[b].item()
            want = min(r * a, min(max(r, 0.8), 1.2) * a)
            want = max(want, c * a) if a < 0 else want
            assert got[b, t].item() == pytest.approx(want)


def test_dual_clip_ends_the_gradient_beyond_c_where_the_advantage_is_negative():
    ratio = torch.tensor([[0.5, 1.0, 2.0, 4.0]] * 2, dtype=torch.float64, requires_grad=True)
    surrogate = dual_clip_surrogate(ratio, torch.tensor([[2.0], [-2.0]]).double())
    (slope,) = torch.autograd.grad(surrogate.sum(), ratio)
    assert slope.tolist() == [[2, 2, 0, 0], [0, -2, -2, 0]]


def test_weights_of_a_batch_of_two():
    mask = torch.tensor([[True, False, False, False], [True, True, True, False]])
    want = {"grpo": (1 / 2, 1 / 6), "dr_grpo": (1 / 20, 1 / 20), "dapo": (1 / 4, 1 / 4), "bnpo": (1 / 4, 1 / 4)}
    for loss_type, (short, long) in (want | {"luspo": (1 / 2, 1 / 2)}).items():
        got = token_weights(mask, loss_type, max_completion_length=10)
        assert_near(got, torch.tensor([[short, 0, 0, 0], [long, long, long, 0]]), 1e-6)


@few
@given(seeds, loss_types.filter(lambda name: name != "bnpo"), st.integers(1, 6))
def test_how_an_update_is_cut_changes_nothing(seed, loss_type, rows_at_once):
    logp, _, _, advantages, mask = batch(6, 4, seed)
    settings = {"loss_type": loss_type, "max_completion_length": 4}
    whole, _, _ = token_push(logp, advantages, mask, **settings)
    assert_near(push_in_parts(logp, advantages, mask, rows_at_once, **settings), whole, 1e-9)


@pytest.mark.parametrize(("loss_type", "count_tokens"), [("bnpo", True), ("dapo", False)])
def test_a_mean_over_the_tokens_of_a_part_depends_on_the_cut(loss_type, count_tokens):
    logp, advantages = draw(2, 3, seed=0), torch.tensor([1.0, -1.0]).double()
    mask = torch.tensor([[True, False, False], [True, True, True]])
    parts = push_in_parts(logp, advantages, mask, 1, count_tokens, loss_type=loss_type)
    per_row, _, _ = token_push(logp, advantages, mask, loss_type="grpo")
    whole, _, _ = token_push(logp, advantages, mask, loss_type=loss_type)
    assert_near(parts, per_row)  # one row at a time, it is "grpo"
    assert (parts - whole).abs().max() > 0.1
