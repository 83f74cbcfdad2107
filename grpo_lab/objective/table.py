"""The losses that are in use, as one table: the surrogate of each, and what its clip metrics count.

What each loss divides by stands in `aggregate`.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from grpo_lab.commands.checks import check_at_least, check_positive
from grpo_lab.objective.surrogates import cispo_surrogate, clipped_surrogate, per_token, sapo_surrogate, vespo_surrogate

SMALLEST_LAMBDA = 1e-4  # of VESPO; TRL silently raises a smaller one to it


class SurrogateInputs(NamedTuple):
    """What a surrogate may need, under the names of `policy_loss`."""

    ratio: Tensor
    logp: Tensor
    old_logp: Tensor
    mask: Tensor
    advantages: Tensor
    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    vespo_k_pos: float = 2.0
    vespo_lambda_pos: float = 3.0
    vespo_k_neg: float = 3.0
    vespo_lambda_neg: float = 2.0

    @property
    def high(self) -> float:
        return self.epsilon if self.epsilon_high is None else self.epsilon_high


class Loss(NamedTuple):
    """A row of the table."""

    surrogate: Callable[[SurrogateInputs], Tensor]
    clip_metrics: Callable[[SurrogateInputs], dict[str, Tensor]] = lambda x: {}


def clipped(x: SurrogateInputs) -> Tensor:
    return clipped_surrogate(x.ratio, x.advantages, x.epsilon, x.epsilon_high, x.delta)


def cispo(x: SurrogateInputs) -> Tensor:
    check_at_least("epsilon_high", x.high, 0)
    return cispo_surrogate(x.ratio, x.logp, x.advantages, x.high)


def sapo(x: SurrogateInputs) -> Tensor:
    check_positive("sapo_temperature_pos", x.sapo_temperature_pos)
    check_positive("sapo_temperature_neg", x.sapo_temperature_neg)
    return sapo_surrogate(x.ratio, x.advantages, x.sapo_temperature_pos, x.sapo_temperature_neg)


def vespo(x: SurrogateInputs) -> Tensor:
    for sign in ("pos", "neg"):
        check_at_least(f"vespo_k_{sign}", getattr(x, f"vespo_k_{sign}"), 0)
        check_at_least(f"vespo_lambda_{sign}", getattr(x, f"vespo_lambda_{sign}"), SMALLEST_LAMBDA)
    settings = (x.vespo_k_pos, x.vespo_lambda_pos, x.vespo_k_neg, x.vespo_lambda_neg)
    return vespo_surrogate(x.logp, x.old_logp, x.mask, x.advantages, *settings)


def clip_metrics(x: SurrogateInputs) -> dict[str, Tensor]:
    """Where the gradient is zero: outside of the clip range, and moved as the advantage asks."""
    low = (x.ratio < 1 - x.epsilon) & (per_token(x.advantages) < 0)
    high = (x.ratio > 1 + x.high) & (per_token(x.advantages) > 0)
    return {"clip_ratio/low_mean": low, "clip_ratio/high_mean": high, "clip_ratio/region_mean": low | high}


def cispo_clip_metrics(x: SurrogateInputs) -> dict[str, Tensor]:
    """Where the weight of a token with a positive advantage is bounded."""
    return {"cispo_clip_ratio": (x.ratio > x.high) & (per_token(x.advantages) > 0)}


LOSSES = {
    "grpo": Loss(clipped, clip_metrics),
    "bnpo": Loss(clipped, clip_metrics),
    "dr_grpo": Loss(clipped, clip_metrics),
    "dapo": Loss(clipped, clip_metrics),
    "cispo": Loss(cispo, cispo_clip_metrics),
    "sapo": Loss(sapo),
    "luspo": Loss(clipped, clip_metrics),
    "vespo": Loss(vespo),
}
LOSS_TYPES = tuple(LOSSES)
LOSSES_BY_TOKENS = ("dapo", "cispo", "vespo")  # they divide by the tokens of the whole update
