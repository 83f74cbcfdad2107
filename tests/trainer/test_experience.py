"""An experience: its rows with a gradient, selections of rows, and log-probabilities with little padding."""

import pytest
import torch

from grpo_lab.rollout.forward import model_logprobs
from grpo_lab.trainer import PolicyOptimizer, accumulate_gradient, loop
from grpo_lab.trainer.experience import completion_logprobs, logprobs_without_gradient, order_for_microbatches
from tests.support.small_policy import make_config, make_exact, make_policy, ragged_experience


def test_rows_have_a_gradient_by_their_advantage_and_their_tokens():
    experience = ragged_experience([2, 0, 3, 1], inactive=(2,))
    assert experience.rows_with_gradient(every_row=False).tolist() == [True, False, False, True]
    assert experience.rows_with_gradient(every_row=True).tolist() == [True, False, True, True]


def test_a_selection_of_rows_selects_every_field():
    experience = ragged_experience([2, 1, 3, 1])
    rows = torch.tensor([2, 0])
    assert torch.equal(experience[rows].advantages, experience.advantages[rows])
    assert experience[rows].rollout.texts == ["row 2", "row 0"]
    assert [len(part) for part in experience.split(3)] == [3, 1]


ALTERNATING = (3, 24, 5, 23, 2, 22, 4, 24)


def gradient(experience, config):
    model = make_exact(make_policy()[0])
    metrics = accumulate_gradient(model, PolicyOptimizer(model, config), experience, config)
    return torch.cat([p.grad.flatten() for p in model.parameters()]), metrics


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "bnpo"])
@pytest.mark.parametrize("inactive", [(), (1, 4, 6)], ids=str)
def test_the_order_of_rows_saves_passes_and_changes_no_gradient(loss_type, inactive, logprob_call_shapes, monkeypatch):
    settings = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "max_completion_length": 24}
    experience, config = ragged_experience(ALTERNATING, inactive=inactive), make_config(loss_type=loss_type, **settings)
    sorted_gradient, metrics = gradient(experience, config)
    sorted_shapes, logprob_call_shapes[:] = list(logprob_call_shapes), []
    monkeypatch.setattr(loop, "order_for_microbatches", lambda model, rollout, rows: torch.arange(len(rows)))
    unsorted_gradient, unsorted_metrics = gradient(experience, config)
    torch.testing.assert_close(sorted_gradient, unsorted_gradient, rtol=0, atol=1e-10)
    assert metrics == pytest.approx(unsorted_metrics, abs=1e-6)
    if loss_type == "bnpo":
        assert sorted_shapes == logprob_call_shapes, (
            "its mean depends on the rows of a micro-batch: they stay as they were drawn"
        )
        return
    assert sum(rows for _, rows, _ in sorted_shapes) == len(ALTERNATING) - len(inactive)
    assert len(sorted_shapes) == -(-(len(ALTERNATING) - len(inactive)) // 2) <= len(logprob_call_shapes), (
        "no pass too many"
    )


def test_padding_that_all_prompts_and_completions_share_is_left_out(logprob_call_shapes):
    experience = ragged_experience(ALTERNATING)
    model = make_exact(make_policy()[0])
    for rows, expected in [([0, 2], (4, 2, 5)), ([5], (9, 1, 22)), ([1, 7], (9, 2, 24))]:
        logp, _ = completion_logprobs(model, experience[torch.tensor(rows)], make_config())
        assert logprob_call_shapes.pop() == expected
        for row, got in zip(rows, logp, strict=True):
            assert got.dtype == torch.float64 and got.sum() != 0
            alone = completion_logprobs(model, experience[row : row + 1], make_config())[0][0]
            inside = experience.loss_mask[row]
            torch.testing.assert_close(got[inside], alone[inside], rtol=0, atol=1e-12)
        logprob_call_shapes.clear()


def test_a_micro_batch_of_a_whole_group_reads_one_prompt_whoever_has_no_gradient():
    """The plan of the memory relies on this."""
    experience = ragged_experience([5, 9, 7, 8] * 3, [4, 9, 6], inactive=(1, 4, 5, 6))
    config, model = make_config(num_generations=4, per_device_train_batch_size=4), make_policy()[0]
    gradient_rows = experience.rows_with_gradient(every_row=config.needs_every_row)
    order = order_for_microbatches(model, experience.rollout, gradient_rows)
    for part in order.split(4):
        assert len(experience.rollout.prompt_of_row[part].unique()) == 1


@pytest.mark.parametrize("entropy_coef", [0.0, 0.01])
def test_chunked_old_logprobs_equal_those_of_the_update_to_the_bit(entropy_coef, monkeypatch):
    """Otherwise the first ratio would not be exactly 1. With and without entropy, the last bits may differ."""
    monkeypatch.setattr(model_logprobs, "MAX_LOGITS_AT_ONCE", 1)
    experience, model = ragged_experience(ALTERNATING), make_policy()[0]
    config = make_config(entropy_coef=entropy_coef, per_device_train_batch_size=len(ALTERNATING))
    order = order_for_microbatches(model, experience.rollout, experience.loss_mask.any(-1))
    expected = completion_logprobs(model, experience[order], config)[0][order.argsort()]
    assert torch.equal(logprobs_without_gradient(model, experience, config), expected)
    without_entropy = logprobs_without_gradient(model, experience, make_config())
    torch.testing.assert_close(without_entropy, expected.detach(), rtol=0, atol=1e-5)
