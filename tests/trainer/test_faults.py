"""Non-finite updates, missing rewards and half precision: the trainer skips, counts, leaves out or stops."""

from itertools import pairwise

import pytest
import torch

from grpo_lab.config.precision import PRECISIONS
from grpo_lab.trainer import loop, train
from tests.support.small_policy import (
    ROWS,
    letter_reward,
    make_config,
    make_policy,
    same_weights,
    train_small,
    weights,
)


def spoil(monkeypatch, calls, value=float("nan")):
    """Make the loss and its gradient non-finite in these calls of `microbatch_loss`."""
    count, microbatch_loss = iter(range(1000)), loop.microbatch_loss

    def spoilt(*arguments, **keywords):
        loss, metrics = microbatch_loss(*arguments, **keywords)
        return loss * value if next(count) in calls else loss, metrics

    monkeypatch.setattr(loop, "microbatch_loss", spoilt)


def test_a_loss_that_is_not_finite_is_skipped_counted_and_forgotten(monkeypatch):
    spoil(monkeypatch, {1, 2, 4}, float("inf"))
    weights_after = []
    model, tokenizer = make_policy()
    history = train(
        model, tokenizer, ROWS, letter_reward, make_config(max_steps=6), lambda *_: weights_after.append(weights(model))
    )
    moved = [not same_weights(earlier, later) for earlier, later in pairwise(weights_after)]
    assert moved == [False, False, True, False, True]
    assert [metrics["nonfinite_steps"] for metrics in history] == [0, 1, 2, 2, 3, 3]
    assert all(value.isfinite().all() for value in weights_after[-1].values())


@pytest.mark.parametrize("name", PRECISIONS)
def test_training_works_in_every_precision_mode(name):
    """In half precision, sampler and trainer may differ by the rounding of a logit, of which 3 bits are fractional."""
    model, tokenizer = make_policy()
    model.to(PRECISIONS[name].weights)
    start = weights(model)
    history = train(model, tokenizer, ROWS, letter_reward, make_config(beta=0.05, max_steps=3, precision=name))
    assert all(v.dtype == PRECISIONS[name].weights and v.isfinite().all() for v in weights(model).values())
    assert all(not torch.equal(start[k], v) for k, v in weights(model).items() if "proj.weight" in k)
    bound = 1e-4 if name == "fp32" else 0.1
    assert history[0]["kl"] == 0.0, "the reference computes as the policy does: else it would be that of the rounding"
    assert history[-1]["nonfinite_steps"] == 0 and all(m["sampling/logp_difference_max"] < bound for m in history)


def test_weights_that_diverged_are_an_error_that_names_the_learning_rate():
    with pytest.raises(RuntimeError, match=r"logits are not finite, so nothing can be sampled.*look at learning_rate"):
        train_small(learning_rate=1e30, max_steps=4)
