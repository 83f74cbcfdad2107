"""The losses that are in use, as one table: each is a surrogate, and an average over it."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from grpo_lab.checks import check_choice
from grpo_lab.objective.surrogates import cispo_surrogate, clipped_surrogate, sapo_surrogate, vespo_surrogate


class Batch(NamedTuple):
    """What a surrogate may need, advantages with an axis of tokens, and the upper clip range never None."""

    ratio: Tensor
    logp: Tensor
    old_logp: Tensor
    mask: Tensor
    advantages: Tensor
    epsilon: float
    epsilon_high: float
    delta: float | None


class Loss(NamedTuple):
    """A row of the table: a surrogate, the average that `aggregate` takes of it, and what its clip metrics count.

    The averages go by verl's names. "token-mean" divides by the tokens of the whole update, "batch-token-mean" by those
    of the batch at hand.
    """

    surrogate: Callable[[Batch], Tensor]
    average: str
    clip_metrics: Callable[[Batch], dict[str, Tensor]] = lambda x: {}


def clipped(x: Batch) -> Tensor:
    return clipped_surrogate(x.ratio, x.advantages, x.epsilon, x.epsilon_high, x.delta)


def outside(x: Batch) -> dict[str, Tensor]:
    """Where the gradient is zero: outside of the clip range, and moved as the advantage asks."""
    low = (x.ratio < 1 - x.epsilon) & (x.advantages < 0)
    high = (x.ratio > 1 + x.epsilon_high) & (x.advantages > 0)
    return {"clip_ratio/low_mean": low, "clip_ratio/high_mean": high, "clip_ratio/region_mean": low | high}


def above(x: Batch) -> dict[str, Tensor]:
    """Where the weight of a good token is bounded."""
    return {"cispo_clip_ratio": (x.ratio > x.epsilon_high) & (x.advantages > 0)}


LOSSES = {
    "grpo": Loss(clipped, "seq-mean-token-mean", outside),
    "bnpo": Loss(clipped, "batch-token-mean", outside),
    "dr_grpo": Loss(clipped, "seq-mean-token-sum-norm", outside),
    "dapo": Loss(clipped, "token-mean", outside),
    "cispo": Loss(lambda x: cispo_surrogate(x.ratio, x.logp, x.advantages, x.epsilon_high), "token-mean", above),
    "sapo": Loss(lambda x: sapo_surrogate(x.ratio, x.advantages), "seq-mean-token-mean"),
    "luspo": Loss(clipped, "seq-mean-token-sum", outside),
    "vespo": Loss(lambda x: vespo_surrogate(x.logp, x.old_logp, x.mask, x.advantages), "token-mean"),
}
LOSS_TYPES = tuple(LOSSES)
LOSSES_BY_TOKENS = tuple(name for name, loss in LOSSES.items() if loss.average == "token-mean")


def find_loss(loss_type: str) -> Loss:
    """The row of a loss; ValueError for a name that is not in the table."""
    check_choice("loss_type", loss_type, LOSSES)
    return LOSSES[loss_type]
