"""The losses that are in use, each as one entry that says everything about it; and their settings."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal

from torch import Tensor

from grpo_lab.base.checks import InputError, check_clip_range
from grpo_lab.base.setting import arguments, check_range, setting
from grpo_lab.objective.surrogates import cispo_surrogate, clipped_surrogate, per_token, sapo_surrogate, vespo_surrogate

SMALLEST_LAMBDA = 1e-4  # of VESPO; TRL silently raises a smaller one to it


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """The settings of the losses, under TRL's names: options of a command, fields of a `GRPOConfig`."""

    epsilon: float = setting(0.2, at_least=0, at_most=1)
    epsilon_high: float | None = setting(None, 'none: epsilon; for "cispo" the largest weight, such as 5.0', at_least=0)
    delta: float | None = setting(None, above=1)
    sapo_temperature_pos: float = setting(1.0, above=0)
    sapo_temperature_neg: float = setting(1.05, above=0)
    vespo_k_pos: float = setting(2.0, at_least=0)
    vespo_lambda_pos: float = setting(3.0, at_least=SMALLEST_LAMBDA)
    vespo_k_neg: float = setting(3.0, at_least=0)
    vespo_lambda_neg: float = setting(2.0, at_least=SMALLEST_LAMBDA)


@dataclass(frozen=True)
class Loss:
    """An entry of `LOSSES`: everything that a loss is.

    The functions say by the names of their arguments what they read: "ratio", "logp", "old_logp", "mask",
    "advantages"; and settings of `LossSettings`, of which an epsilon_high of None has become epsilon.

    surrogate: what a token contributes, to be maximised.
    divided_by: which average of `aggregate`.
    clip_metrics: True at each token that counts, by the name of the metric.
    check: raises InputError for settings of a run (as they are given) that do not go together.
    trl: "same", or why `--engine trl` refuses it.
    """

    surrogate: Callable[..., Tensor]
    divided_by: Literal["length", "rows", "limit", "part", "update"]
    clip_metrics: Callable[..., dict[str, Tensor]] = lambda: {}
    check: Callable[..., None] = lambda: None
    trl: str = "same"

    @cached_property
    def reads(self) -> frozenset[str]:
        """The settings that matter to it."""
        names = {*arguments(self.surrogate), *arguments(self.clip_metrics)}
        level = {"importance_sampling_level"} if "ratio" in names else set()
        return frozenset(names & SETTINGS.keys() | level)


def checked_settings(loss: Loss, chosen: dict) -> dict:
    """All settings of the losses, with their defaults; those that this loss reads are in their ranges."""
    settings = vars(LossSettings(**chosen))
    for name in loss.reads & settings.keys():
        check_range(SETTINGS[name], settings[name], infinite=True)
    return settings


def cispo(ratio, logp, advantages, epsilon_high):
    return cispo_surrogate(ratio, logp, advantages, bound=epsilon_high)


def sapo(ratio, advantages, sapo_temperature_pos, sapo_temperature_neg):
    return sapo_surrogate(ratio, advantages, sapo_temperature_pos, sapo_temperature_neg)


def vespo(logp, old_logp, mask, advantages, vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg):
    settings = (vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg)
    return vespo_surrogate(logp, old_logp, mask, advantages, *settings)


def clip_metrics(ratio, advantages, epsilon, epsilon_high) -> dict[str, Tensor]:
    """True where the gradient is zero: outside of the clip range, and moved in the direction of the advantage."""
    low = (ratio < 1 - epsilon) & (per_token(advantages) < 0)
    high = (ratio > 1 + epsilon_high) & (per_token(advantages) > 0)
    return {"clip_ratio/low_mean": low, "clip_ratio/high_mean": high, "clip_ratio/region_mean": low | high}


def cispo_clip_metrics(ratio, advantages, epsilon_high) -> dict[str, Tensor]:
    """True where the weight of a token with a positive advantage is bounded."""
    return {"cispo_clip_ratio": (ratio > epsilon_high) & (per_token(advantages) > 0)}


def check_cispo(epsilon_high) -> None:
    if epsilon_high is None:
        expected = "expected the largest weight of a token with loss_type 'cispo'; 5.0 is usual"
        in_trl = "in TRL, too, where None means epsilon, which is far too low"
        raise InputError("epsilon_high", None, f"{expected} ({in_trl})")


SETTINGS = {each.name: each for each in fields(LossSettings)}
CLIPPED = (clip_metrics, check_clip_range)
LOSSES = {
    "grpo": Loss(clipped_surrogate, "length", *CLIPPED),
    "bnpo": Loss(clipped_surrogate, "part", *CLIPPED),
    "dr_grpo": Loss(clipped_surrogate, "limit", *CLIPPED),
    "dapo": Loss(clipped_surrogate, "update", *CLIPPED),
    "cispo": Loss(cispo, "update", cispo_clip_metrics, check_cispo),
    "sapo": Loss(sapo, "length"),
    "luspo": Loss(clipped_surrogate, "rows", *CLIPPED),
    "vespo": Loss(vespo, "update"),
}
LOSS_TYPES = tuple(LOSSES)
LOSSES_BY_TOKENS = tuple(name for name, loss in LOSSES.items() if loss.divided_by == "update")  # of the whole update
