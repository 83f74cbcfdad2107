"""Right answers to the exercises of notebook 05, each written differently; the check has to accept them all."""

import math

import torch
from einops import rearrange

from grpo_lab import objective
from grpo_lab.commands.setting import call
from grpo_lab.kl import kl_estimate
from tests.course.right import by_loops
from tests.support.oracles import objective as oracles


def _settled(ratio, advantages, epsilon, epsilon_high, delta):
    high = epsilon if epsilon_high is None else epsilon_high
    advantages = rearrange(advantages, "B -> B 1") if advantages.ndim == 1 else advantages
    return advantages, 1 - epsilon, 1 + high, math.inf if delta is None else delta


def clipped_by_sign(ratio, advantages, epsilon=0.2, epsilon_high=None, delta=None):
    """For a good token only the upper bound can bind, for a bad one only the lower one and delta."""
    a, low, high, delta = _settled(ratio, advantages, epsilon, epsilon_high, delta)
    return torch.where(a > 0, ratio.clamp(max=high), ratio.clamp(low, delta)) * a


def _column(advantages):
    return advantages.view(-1, 1) if advantages.dim() == 1 else advantages


def aggregate_by_loops(values, mask, loss_type, max_completion_length=None, num_items=None):
    values = values.expand(mask.shape)
    rows = [[v for v, keep in zip(row, kept, strict=True) if keep] for row, kept in zip(values, mask, strict=True)]
    zero = torch.where(mask, values, 0).sum() * 0
    if loss_type in ("grpo", "sapo"):
        return sum((sum(row, zero) / max(len(row), 1) for row in rows), zero) / len(rows)
    total = sum((sum(row, zero) for row in rows), zero)
    count = sum(len(row) for row in rows)
    if loss_type == "luspo":
        return total / len(rows)
    if loss_type == "dr_grpo":
        return total / len(rows) / max_completion_length
    given = count if loss_type == "bnpo" or num_items is None else float(num_items)
    return total / max(given, 1)


def loss_by_the_table(
    logp, advantages, mask, old_logp=None, ref_logp=None, *, loss_type="grpo", importance_sampling_level="token",
    beta=0.0, kl_estimator="k3", kl_bias_correction=False, max_completion_length=None, num_items=None, **settings,
):  # fmt: skip
    """For all eight loss types, as the library does it."""
    old_logp = logp.detach() if old_logp is None else old_logp
    ratio = objective.importance_ratio(logp, old_logp, mask, importance_sampling_level)
    inputs = vars(objective.LossSettings(**settings))
    inputs["epsilon_high"] = inputs["epsilon"] if inputs["epsilon_high"] is None else inputs["epsilon_high"]
    inputs |= {"ratio": ratio, "logp": logp, "old_logp": old_logp, "mask": mask, "advantages": advantages}
    values = -call(objective.LOSSES[loss_type].surrogate, inputs)
    if beta > 0:
        values = values + beta * kl_estimate(logp, ref_logp, kl_estimator) * (ratio if kl_bias_correction else 1)
    return objective.aggregate(values, mask, loss_type, max_completion_length, num_items), {"beta": beta}


RIGHT = {
    "importance_ratio": (by_loops(oracles.importance_ratio),),
    "clipped_surrogate": (clipped_by_sign,),
    "aggregate": (aggregate_by_loops,),
    "policy_loss": (loss_by_the_table,),
}
