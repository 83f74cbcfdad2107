"""Properties of the loss of a batch: padding and garbage have no effect, micro-batches add up, extremes stay finite."""

import math
from itertools import product

import pytest
import torch
from hypothesis import strategies as st

from grpo_lab.objective import LOSS_TYPES, aggregate, gspo_token_ratio, importance_ratio, microbatch_loss, policy_loss
from tests.support import oracles
from tests.support.agreement import assert_near, draw_batch, value_and_gradients
from tests.support.few_fast import few_fast

shapes = st.tuples(st.integers(1, 4), st.integers(1, 4))
loss_types = st.sampled_from(oracles.LOSS_TYPES)
levels = st.sampled_from(["token", "sequence"])


def settings(loss_type, level, **changes):
    usual = {"loss_type": loss_type, "importance_sampling_level": level, "beta": 0.1, "max_completion_length": 8}
    return usual | changes


@pytest.mark.parametrize(
    ("level", "loss_type", "garbage"),
    few_fast(product(["token", "sequence"], LOSS_TYPES), [math.nan, math.inf, -math.inf, 1e30]),
)
def test_policy_loss_ignores_values_under_the_mask(level, loss_type, garbage):
    logp, old, ref, advantages, mask = draw_batch(4, 5, 1)
    keywords = settings(loss_type, level, kl_bias_correction=True)
    expected, [expected_gradient] = value_and_gradients(
        lambda x: policy_loss(x, advantages, mask, old, ref, **keywords)[0], [logp]
    )
    values = torch.where(mask, logp, garbage)
    assert_near(aggregate(values, mask, loss_type, 8), aggregate(logp, mask, loss_type, 8))
    new_and_old = torch.where(mask, logp, garbage), torch.where(mask, old, garbage)
    assert gspo_token_ratio(*new_and_old, mask).isfinite().all()
    ratio = importance_ratio(*new_and_old, mask, level)
    assert ratio.isfinite().all() and (level == "sequence" or (ratio[~mask] == 1).all())
    for changed_index in range(3):
        replaced = [torch.where(mask, x, garbage) if i == changed_index else x for i, x in enumerate((logp, old, ref))]
        loss, [gradient] = value_and_gradients(
            lambda x, s=replaced: policy_loss(x, advantages, mask, s[1], s[2], **keywords)[0], [replaced[0]]
        )
        assert_near(loss, expected)
        assert_near(gradient, expected_gradient)
        metrics = policy_loss(replaced[0], advantages, mask, replaced[1], replaced[2], **keywords)[1]
        assert all(math.isfinite(x) for x in metrics.values()), metrics


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_metrics_of_rows_with_one_token_are_those_of_the_padded_rows(loss_type, level):
    """A completion is fully masked; metrics over rows count it, and metrics over tokens do not."""
    logp, old, ref = (values[:, None] for values in torch.tensor([[-0.5, -2.0], [-1.0, -2.0], [-0.7, -1.0]]))
    advantages, mask = torch.tensor([1.0, -1.0]), torch.tensor([[True], [False]])
    keywords = settings(loss_type, level, epsilon_high=0.3)
    metrics = policy_loss(logp, advantages, mask, old, ref, **keywords)[1]
    padded_logp, padded_mask, padded_old, padded_ref = (
        torch.nn.functional.pad(x, (0, 1)) for x in (logp, mask, old, ref)
    )
    padded = policy_loss(padded_logp, advantages, padded_mask, padded_old, padded_ref, **keywords)[1]
    assert metrics == padded and metrics.row_mean_names == padded.row_mean_names
    expected_ratio = math.exp(0.5) if level == "token" else (math.exp(0.5) + 1) / 2
    assert metrics["ratio"].item() == pytest.approx(expected_ratio)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_microbatch_losses_add_up_to_the_loss_of_the_update(loss_type, level):
    logp, old, ref, advantages, _ = draw_batch(8, 6, 5)
    mask = torch.arange(6) < torch.tensor([6, 6, 5, 6, 1, 0, 2, 1])[:, None]
    keywords = settings(loss_type, level)

    def added_up(x, cut):
        parts = [
            microbatch_loss(x[r], advantages[r], mask[r], 8, mask.sum(), old_logp=old[r], ref_logp=ref[r], **keywords)[
                0
            ]
            for r in torch.arange(8).split(cut)
        ]
        return sum(parts)

    whole, [expected] = value_and_gradients(lambda x: policy_loss(x, advantages, mask, old, ref, **keywords)[0], [logp])
    for cut in (8, 4, 2, 1, [5, 3], [1, 7]):
        loss, [gradient] = value_and_gradients(lambda x, c=cut: added_up(x, c), [logp])
        if loss_type == "bnpo" and cut != 8:
            assert (gradient - expected).abs().max() > 1e-3, (
                "bnpo divides by the tokens of each part: by design it differs"
            )
        else:
            assert_near(loss, whole)
            assert_near(gradient, expected)


def test_bnpo_weighs_the_mean_of_each_part_by_its_rows():
    logp, _, _, advantages, mask = draw_batch(7, 5, 0)
    part = microbatch_loss(logp[:3], advantages[:3], mask[:3], 7, mask.sum(), loss_type="bnpo")[0]
    assert_near(part, policy_loss(logp[:3], advantages[:3], mask[:3], loss_type="bnpo")[0] * 3 / 7)
    with pytest.raises(ValueError, match="num_rows is 2; it must be at least 3"):
        microbatch_loss(logp[:3], advantages[:3], mask[:3], 2, mask.sum())


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_policy_loss_is_finite_far_from_the_old_policy(loss_type):
    logp = torch.tensor([[-0.01, -0.01], [-300.0, -200.0]], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([[-300.0, -200.0], [-0.01, -0.01]], dtype=torch.float64)
    loss, metrics = policy_loss(
        logp, torch.tensor([1.0, 1.0]).double(), torch.ones(2, 2, dtype=torch.bool), old,
        loss_type=loss_type, max_completion_length=2,
    )  # fmt: skip
    loss.backward()
    assert loss.isfinite() and logp.grad.isfinite().all() and all(math.isfinite(x) for x in metrics.values())
