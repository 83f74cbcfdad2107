"""Log-probabilities with little padding: rows by length, prompts cut and shared; the values are the same."""

import pytest
import torch

from grpo_lab.trainer import PolicyOptimizer, accumulate_gradient
from grpo_lab.trainer import logprobs as computing
from grpo_lab.trainer import loop as trainer
from grpo_lab.trainer.logprobs import completion_logprobs
from tests.support.worlds import make_config, make_exact, make_world, ragged_experience


@pytest.fixture(autouse=True)
def a_pass_that_costs_nothing(monkeypatch):
    monkeypatch.setattr(computing, "ONE_MORE_PASS", 0)


ALTERNATING, MOSTLY_SHORT = (3, 24, 5, 23, 2, 22, 4, 24), (1, 1, 2, 3, 16, 2, 1, 9)


def outcome(experience, config):
    model = make_exact(make_world()[0])
    rows = experience.with_gradient(make_config())
    found = completion_logprobs(model, experience, config, rows)
    values = [torch.where(experience.mask, x, 0) for x in found if x is not None]
    total = sum((x.square() * experience.advantages[:, None]).sum() for x in values)
    return values, torch.autograd.grad(total, list(model.parameters()))


@pytest.mark.parametrize("settings", [{}, {"entropy_coef": 0.1}, {"gradient_checkpointing": True}], ids=str)
@pytest.mark.parametrize("inactive", [(), (1, 4)], ids=str)
def test_values_and_gradients_are_those_of_all_rows_together(settings, inactive, shapes, monkeypatch):
    config, order = make_config(**settings), torch.tensor([7, 0, 4, 1, 3, 2, 6, 5])
    experience = ragged_experience(MOSTLY_SHORT, (4, 3), inactive, columns=16)[order]
    apart = outcome(experience, config)
    in_groups, shapes[:] = list(shapes), []
    monkeypatch.setattr(computing, "similar_lengths", lambda rows, lengths: [rows])
    together = outcome(experience, config)
    (_, rows, length, _), = shapes  # fmt: skip
    assert len(in_groups) > 1 and sum(r for _, r, _, _ in in_groups) == rows
    assert sum(r * t for _, r, t, _ in in_groups) < 0.5 * rows * length
    assert len(apart[0]) == len(together[0]) == (2 if config.entropy_coef else 1)
    for one, other in zip(apart[0], together[0], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
        computed = experience.with_gradient(make_config())
        assert (one[~computed] == 0).all() and (one[computed, 0] != 0).all()
    for one, other in zip(apart[1], together[1], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def gradient(experience, config):
    model = make_exact(make_world()[0])
    metrics = accumulate_gradient(model, PolicyOptimizer(model, config), experience, config)
    return torch.cat([p.grad.flatten() for p in model.parameters()]), metrics


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "bnpo"])
@pytest.mark.parametrize("inactive", [(), (1, 4, 6)], ids=str)
def test_the_order_of_rows_saves_padding_and_changes_no_gradient(loss_type, inactive, shapes, monkeypatch):
    settings = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "max_completion_length": 24}
    experience, config = ragged_experience(ALTERNATING, inactive=inactive), make_config(loss_type=loss_type, **settings)
    in_order, metrics = gradient(experience, config)
    sorted_shapes, shapes[:] = list(shapes), []
    monkeypatch.setattr(trainer, "cheapest_order", lambda experience, *_: torch.arange(len(experience)))
    as_they_came, other = gradient(experience, config)
    torch.testing.assert_close(in_order, as_they_came, rtol=0, atol=1e-10)
    assert metrics == pytest.approx(other, abs=1e-6)
    if loss_type == "bnpo":
        assert sorted_shapes == shapes, "its mean depends on the rows of a micro-batch: they stay as they were drawn"
        return
    padded = sum(rows * length for _, rows, length, _ in sorted_shapes)
    real = sum(length for row, length in enumerate(ALTERNATING) if row not in inactive)
    assert real <= padded <= 1.1 * real and len(sorted_shapes) < len(shapes), "fewer passes, and hardly any padding"


def test_padding_that_all_prompts_share_is_left_out_and_prompts_are_shared_only_where_that_saves(shapes):
    experience = ragged_experience(ALTERNATING)
    model = make_exact(make_world()[0])
    for rows, want in [([0, 2], (4, 2, 5, True)), ([5], (9, 1, 22, False)), ([1, 7], (9, 2, 24, False))]:
        logp, _ = completion_logprobs(model, experience[torch.tensor(rows)], make_config())
        assert shapes.pop() == want
        for row, got in zip(rows, logp, strict=True):
            assert got.dtype == torch.float64 and got.sum() != 0
            alone = completion_logprobs(model, experience[row : row + 1], make_config())[0][0]
            inside = experience.mask[row]
            torch.testing.assert_close(got[inside], alone[inside], rtol=0, atol=1e-12)
        shapes.clear()


@pytest.mark.parametrize(("padding", "groups"), [(512, [[3, 5]]), (513, [[5], [3]])])
def test_a_group_of_its_own_has_to_save_more_than_another_pass_over_the_weights_costs(padding, groups, monkeypatch):
    monkeypatch.setattr(computing, "ONE_MORE_PASS", 512)
    lengths = torch.tensor([600, 600 - padding])
    assert [group.tolist() for group in computing.similar_lengths(torch.tensor([3, 5]), lengths)] == groups
