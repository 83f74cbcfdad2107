"""The table of the losses, with one entry for each loss, and the settings of the losses."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor

from grpo_lab.base.checks import InputError, InputTypeError, check_choice
from grpo_lab.base.option import check_value, option, option_specs
from grpo_lab.objective.surrogates import (
    check_clip_range,
    cispo_surrogate,
    clipped_surrogate,
    per_token,
    sapo_surrogate,
    vespo_surrogate,
)

MIN_LAMBDA = 1e-4  # smallest decay of VESPO; TRL silently raises a smaller value to it
DIVISORS = ("completion_tokens", "completions", "max_completion_length", "microbatch_tokens", "update_tokens")


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """The settings of the losses, under TRL's names; each is a field of `GRPOConfig` and an option of the commands."""

    epsilon: float = option(
        0.2,
        "lower clip range: ratios below 1 - epsilon are clipped",
        group="objective",
        at_least=0,
        at_most=1,
    )
    epsilon_high: float | None = option(
        None, 'upper clip range (none: epsilon); for "cispo" the largest importance weight, such as 5.0', at_least=0
    )
    delta: float | None = option(
        None,
        "upper bound of the unclipped ratio (two-sided clipping), above 1 + epsilon_high (none: no bound)",
        above=1,
    )
    sapo_temperature_pos: float = option(1.0, "temperature of SAPO's sigmoid gate for positive advantages", above=0)
    sapo_temperature_neg: float = option(1.05, "temperature of SAPO's sigmoid gate for the other advantages", above=0)
    vespo_k_pos: float = option(2.0, "exponent k of VESPO's sequence weight for advantages of at least 0", at_least=0)
    vespo_lambda_pos: float = option(
        3.0, "decay lambda of VESPO's sequence weight for advantages of at least 0", at_least=MIN_LAMBDA
    )
    vespo_k_neg: float = option(3.0, "exponent k of VESPO's sequence weight for negative advantages", at_least=0)
    vespo_lambda_neg: float = option(
        2.0, "decay lambda of VESPO's sequence weight for negative advantages", at_least=MIN_LAMBDA
    )

    @classmethod
    def from_keywords(cls, **settings) -> "LossSettings":
        """Return the settings with these names; raise InputTypeError for a name that is none of them."""
        names = [member.name for member in fields(cls)]
        for name in settings.keys() - names:
            expected = f"expected one of {', '.join(names)}"
            raise InputTypeError(name, settings[name], expected, problem="is no setting of a loss")
        return cls(**settings)


class LossBatch(NamedTuple):
    """The tensors from which the surrogates are computed: B rows of T tokens."""

    ratio: Float[Tensor, "B #T"]  # `importance_ratio(logp, old_logp, mask, importance_sampling_level)`
    logp: Float[Tensor, "B T"]
    old_logp: Float[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    advantages: Float[Tensor, " B"] | Float[Tensor, "B #T"]


@dataclass(frozen=True)
class Loss:
    """An entry of `LOSSES`: the surrogate of a loss, its divisor, settings, metrics and checks.

    Args:
        surrogate: Function that returns the contribution of each token to the objective, which is maximised.
        divided_by: The divisor of `aggregate`, one of `DIVISORS`: the tokens of each completion (before the mean over
            completions), the completions, the completions times `max_completion_length`, or the tokens of the
            micro-batch or of the whole update.
        reads: Names of the fields of `LossSettings` that the loss reads, and "importance_sampling_level" if it reads
            the ratio. A run with this loss refuses any other field that is set.
        clip_metrics: Function that returns, for each metric, a mask that is True at each token to count.
        check: Function that raises InputError for settings that contradict each other.

    `check` gets the settings of the run, in which epsilon_high may be None: so the check of "cispo" can refuse that.
    `surrogate` and `clip_metrics` get them from `policy_loss`, which has replaced None by epsilon.
    """

    surrogate: Callable[[LossBatch, LossSettings], Tensor]
    divided_by: str
    reads: tuple[str, ...]
    clip_metrics: Callable[[LossBatch, LossSettings], dict[str, Tensor]] = lambda batch, settings: {}
    check: Callable[[LossSettings], None] = lambda settings: None

    def __post_init__(self):
        check_choice("divided_by", self.divided_by, DIVISORS)

    @property
    def depends_on_microbatches(self) -> bool:
        """Whether the loss of an update depends on which of its rows share a micro-batch."""
        return self.divided_by == "microbatch_tokens"


def ppo_clip_metrics(batch: LossBatch, settings: LossSettings) -> dict[str, Tensor]:
    """Mark the tokens that the clip range clips: their ratios have left it in the direction of the advantage."""
    advantages = per_token(batch.advantages)
    low = (batch.ratio < 1 - settings.epsilon) & (advantages < 0)
    high = (batch.ratio > 1 + settings.epsilon_high) & (advantages > 0)
    return {"clip_ratio/low_mean": low, "clip_ratio/high_mean": high, "clip_ratio/region_mean": low | high}


def check_cispo(settings: LossSettings) -> None:
    if settings.epsilon_high is None:
        expected = "expected the largest weight of a token with loss_type 'cispo'; 5.0 is usual"
        in_trl = "in TRL, too, where None means epsilon, which is far too low"
        raise InputError("epsilon_high", None, f"{expected} ({in_trl})")


# Makes a loss with the clipped surrogate; `divided_by` is the only difference between such losses.
make_clipped_loss = partial(
    Loss,
    surrogate=lambda batch, settings: clipped_surrogate(
        batch.ratio, batch.advantages, settings.epsilon, settings.epsilon_high, settings.delta
    ),
    reads=("epsilon", "epsilon_high", "delta", "importance_sampling_level"),
    clip_metrics=ppo_clip_metrics,
    check=lambda settings: check_clip_range(settings.epsilon, settings.epsilon_high, settings.delta),
)
# The surrogate of an entry calls its formula in surrogates.py with the tensors and the settings that the formula reads.
LOSSES = {
    "grpo": make_clipped_loss(divided_by="completion_tokens"),
    "bnpo": make_clipped_loss(divided_by="microbatch_tokens"),
    "dr_grpo": make_clipped_loss(divided_by="max_completion_length"),
    "dapo": make_clipped_loss(divided_by="update_tokens"),
    "cispo": Loss(
        surrogate=lambda batch, settings: cispo_surrogate(
            batch.ratio, batch.logp, batch.advantages, bound=settings.epsilon_high
        ),
        divided_by="update_tokens",
        reads=("epsilon_high", "importance_sampling_level"),
        clip_metrics=lambda batch, settings: {
            "cispo_clip_ratio": (batch.ratio > settings.epsilon_high) & (per_token(batch.advantages) > 0)
        },
        check=check_cispo,
    ),
    "sapo": Loss(
        surrogate=lambda batch, settings: sapo_surrogate(
            batch.ratio,
            batch.advantages,
            tau_pos=settings.sapo_temperature_pos,
            tau_neg=settings.sapo_temperature_neg,
        ),
        divided_by="completion_tokens",
        reads=("sapo_temperature_pos", "sapo_temperature_neg", "importance_sampling_level"),
    ),
    "luspo": make_clipped_loss(divided_by="completions"),
    "vespo": Loss(
        surrogate=lambda batch, settings: vespo_surrogate(
            batch.logp,
            batch.old_logp,
            batch.mask,
            batch.advantages,
            k_pos=settings.vespo_k_pos,
            lambda_pos=settings.vespo_lambda_pos,
            k_neg=settings.vespo_k_neg,
            lambda_neg=settings.vespo_lambda_neg,
        ),
        divided_by="update_tokens",
        reads=("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
    ),
}
LOSS_TYPES = tuple(LOSSES)


LOSS_SETTING_SPECS = option_specs(LossSettings)


def divides_by_update_tokens(loss_type: str) -> bool:
    """Return True for a loss, by its name in `LOSSES`, that divides by the tokens of the update, such as "dapo"."""
    check_choice("loss_type", loss_type, LOSSES)
    return LOSSES[loss_type].divided_by == "update_tokens"


def check_ranges(loss: Loss, settings: LossSettings) -> None:
    """Raise InputError for the first setting that this loss reads and that is out of its range."""
    for name, spec in LOSS_SETTING_SPECS.items():
        if name in loss.reads:
            check_value(spec, getattr(settings, name), allow_infinity=True)
