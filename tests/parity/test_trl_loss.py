"""`policy_loss` has the value, gradient and metrics of TRL's loss, for every loss type, level, KL and clip setting."""

from itertools import product

import pytest
import torch

from grpo_lab.objective import policy_loss
from tests.parity.engines import IN_TRL, require_engine, trl_loss
from tests.support.agreement import assert_agree, draw, draw_batch
from tests.support.few_fast import few_fast

trl = require_engine("trl")

KLS = {
    "beta 0": {"beta": 0.0},
    "beta 0.04": {"beta": 0.04},
    "beta 0.04, corrected": {"beta": 0.04, "kl_bias_correction": True},
}
CLIPS = {
    "clip": {"epsilon": 0.2},
    "higher": {"epsilon": 0.2, "epsilon_high": 0.28},
    "delta": {"epsilon": 0.2, "delta": 1.5},
    "wide": {"epsilon": 0.1, "epsilon_high": 5.0},
}


@pytest.fixture(autouse=True)
def double_precision():
    """Set the default precision to float64, because TRL computes SAPO's temperatures in it and float32 rounds 1.05."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("level", "loss_type", "kl", "clip"), few_fast(product(["token", "sequence"], IN_TRL), [*KLS], [*CLIPS])
)
def test_policy_loss_has_trls_value_and_gradient(level, loss_type, kl, clip):
    keywords = {
        "loss_type": loss_type, "importance_sampling_level": level, "max_completion_length": 9, **KLS[kl], **CLIPS[clip]
    }  # fmt: skip
    for seed, (B, T), distance, items in [(0, (6, 7), 0.3, None), (1, (5, 5), 1.0, 40), (2, (1, 3), 4.0, 3)]:
        logp, old, ref, advantages, mask = draw_batch(B, T, seed, distance)
        rows = (advantages, mask, old, ref)
        assert_agree(
            lambda x, r=rows, n=items: policy_loss(x, *r, num_items=n, **keywords)[0],
            lambda x, r=rows, n=items: trl_loss(x, *r, num_items=n, **keywords)[0],
            logp,
        )


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", IN_TRL)
def test_advantages_of_single_tokens_and_the_first_step(loss_type, level):
    """Without recorded log-probabilities, as at the first step, the current ones without gradient are the old ones."""
    logp, old, ref, advantages, mask = draw_batch(4, 6, 3)
    keywords = {"loss_type": loss_type, "importance_sampling_level": level, "max_completion_length": 6}
    for rows, beta in [((draw(4, 6, seed=7), mask, old, ref), 0.1), ((advantages, mask), 0.0)]:
        assert_agree(
            lambda x, r=rows, b=beta: policy_loss(x, *r, beta=b, **keywords)[0],
            lambda x, r=rows, b=beta: trl_loss(x, *r, beta=b, **keywords)[0],
            logp,
        )


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", IN_TRL)
def test_loss_metrics_are_those_of_trl(loss_type, level, per_token):
    logp, old, ref, advantages, mask = draw_batch(6, 7, 6, 0.6)
    advantages = draw(6, 7, seed=8) if per_token else advantages
    keywords = {"loss_type": loss_type, "importance_sampling_level": level, "beta": 0.1, "max_completion_length": 7}
    ours, theirs = (
        loss(logp, advantages, mask, old, ref, epsilon=0.1, **keywords)[1] for loss in (policy_loss, trl_loss)
    )
    shared = ours.keys() & theirs.keys()
    assert "kl" in shared
    assert {name for name in theirs if name.startswith("clip_ratio") and name.endswith("_mean")} <= shared
    for name in shared:
        assert ours[name] == pytest.approx(theirs[name], rel=1e-6), name
    if loss_type in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo"):
        assert ours["clip_ratio/region_mean"] > 0
