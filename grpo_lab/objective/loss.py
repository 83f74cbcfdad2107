"""The loss of a batch, and the contribution of one of its micro-batches."""

import torch
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

from grpo_lab.base.checks import (
    InputError,
    check_all_finite,
    check_at_least,
    check_choice,
    check_dtype,
    check_shapes,
)
from grpo_lab.kl import ESTIMATORS, kl_estimate
from grpo_lab.objective.aggregation import aggregate, token_mean
from grpo_lab.objective.losses import LOSSES, LossBatch, LossSettings, check_ranges, divides_by_update_tokens
from grpo_lab.objective.surrogates import IMPORTANCE_SAMPLING_LEVELS, importance_ratio, upper_clip_range


class LossMetrics(dict[str, Float[Tensor, ""]]):
    """The metrics of a loss by name: each a mean over tokens, or over rows.

    `copy`, `|` and `|=` keep `row_mean_names`, so a function that wraps a loss can add a metric by
    `metrics | {"mine": mean}`.

    row_mean_names: Names of the metrics that are means over rows.
    """

    def __init__(self, means: dict[str, Float[Tensor, ""]], row_mean_names: set[str]):
        super().__init__(means)
        self.row_mean_names = row_mean_names

    def copy(self) -> "LossMetrics":
        return LossMetrics(self, set(self.row_mean_names))

    def __or__(self, other: dict) -> "LossMetrics":  # type: ignore[override]
        """Return the metrics of both; those of `other` are means over tokens, unless it is a `LossMetrics`, too."""
        added_row_mean_names = other.row_mean_names if isinstance(other, LossMetrics) else set()
        return LossMetrics(dict(self) | other, (self.row_mean_names - other.keys()) | added_row_mean_names)

    def __ror__(self, other: dict) -> "LossMetrics":  # type: ignore[override]
        """Return the metrics of both, after those of a plain dict, which are means over tokens."""
        return LossMetrics(other | dict(self), set(self.row_mean_names))

    def __ior__(self, added: dict) -> "LossMetrics":  # type: ignore[override]
        """Add the metrics of `added`, as `|` does."""
        self.row_mean_names = (self | added).row_mean_names
        self.update(added)
        return self


def policy_loss(
    logp: Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B #T"],
    mask: Bool[Tensor, "B T"],
    old_logp: Float[Tensor, "B T"] | None = None,
    ref_logp: Float[Tensor, "B T"] | None = None,
    *,
    loss_type: str = "grpo",
    importance_sampling_level: str = "token",
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    delta: float | None = None,
    beta: float = 0.0,
    kl_estimator: str = "k3",
    kl_bias_correction: bool = False,
    max_completion_length: int | None = None,
    num_items: Real[Tensor, ""] | float | int | None = None,
    **settings,
) -> tuple[Float[Tensor, ""], LossMetrics]:
    r"""Compute the loss of one batch, to be minimised: surrogate, KL term, aggregation, minus sign.

    v_{b,t} = -S_{b,t} \tag{5.12}
    v'_{b,t} = v_{b,t} + \beta \, k_{b,t} \tag{5.13}
    L = \mathrm{aggregate}(v', m) \tag{5.14}

    S is `LOSSES[loss_type].surrogate`: `clipped_surrogate`, except for "cispo", "sapo" and "vespo", which have
    surrogates of their own.

    Args:
        logp: Log-probabilities of the tokens under the policy that is being trained.
        advantages: A, one per completion or one per token; finite everywhere.
        mask: m, True at each token that enters the loss. Log-probabilities elsewhere have no effect, NaN included.
        old_logp: Log-probabilities under the policy that sampled. None: those of the current policy, with the gradient
            stopped (the ratio is exactly 1).
        ref_logp: Log-probabilities under the reference policy; needed if beta > 0.
        loss_type: A name in `LOSSES`.
        importance_sampling_level: "token" for the ratio r of Eq. (5.7), or "sequence" for the ratio s of Eq. (5.8),
            with advantages of either shape (GSPO; luspo is meant to be used with "sequence").
        epsilon: Lower clip range, as in `clipped_surrogate`.
        epsilon_high: Upper clip range, as in `clipped_surrogate`. For "cispo" it is the absolute bound of the ratio
            (5.0 is usual; None means epsilon, as in TRL, and `GRPOConfig` refuses None).
        delta: Upper bound of the unclipped ratio, as in `clipped_surrogate`.
        beta: Weight of the KL term, at least 0.
        kl_estimator: Estimator of the KL term: k is `kl_estimate(logp, ref_logp, kl_estimator)`, of notebook 04.
        kl_bias_correction: Whether to multiply k by the ratio, with the gradient through both (DeepSeek-V3.2; TRL's
            use_bias_correction_kl).
        max_completion_length: The length limit of the run, as in `aggregate`.
        num_items: The number of tokens in the whole optimizer batch, as in `aggregate`.
        settings: The fields of `LossSettings` besides epsilon, epsilon_high and delta, such as sapo_temperature_pos,
            the tau of `sapo_surrogate`. A field that the loss does not read has no effect; only `GRPOConfig` refuses
            it.

    Returns:
        The loss, and metrics under TRL's names: "ratio"; "kl" (if beta > 0); if the loss clips, "clip_ratio/low_mean",
        "clip_ratio/high_mean" and "clip_ratio/region_mean"; for "cispo" "cispo_clip_ratio". Each metric is a mean over
        the tokens of the mask, or over rows if there is one value per row (sequence level), as in TRL. It is a scalar
        without gradient on the device of `logp`, so that reading it is the caller's decision: it makes the program wait
        for a GPU.
    """
    check_shapes(logp=(logp, "B T"), advantages=(advantages, "B | B #T"), mask=(mask, "B T"))
    check_shapes(logp=(logp, "B T"), old_logp=(old_logp, "B T"), ref_logp=(ref_logp, "B T"))
    check_choice("loss_type", loss_type, LOSSES)
    check_choice("importance_sampling_level", importance_sampling_level, IMPORTANCE_SAMPLING_LEVELS)
    check_choice("kl_estimator", kl_estimator, ESTIMATORS)
    check_at_least("beta", beta, 0)
    check_dtype("mask", mask, "bool")
    check_all_finite("advantages", advantages)
    if beta > 0 and ref_logp is None:
        raise InputError("ref_logp", None, f"expected the reference's log-probabilities, since beta is {beta}")
    old_logp = logp.detach() if old_logp is None else old_logp
    # Values outside the mask are set to 0. `aggregate` ignores them, but a NaN would reach the gradient as 0 * NaN.
    logp, old_logp = torch.where(mask, logp, 0), torch.where(mask, old_logp, 0)  # [padding]
    ratio = importance_ratio(logp, old_logp, mask, importance_sampling_level)
    batch = LossBatch(ratio, logp, old_logp, mask, advantages)
    epsilon_high = upper_clip_range(epsilon, epsilon_high)
    loss_settings = LossSettings.from_keywords(epsilon=epsilon, epsilon_high=epsilon_high, delta=delta, **settings)
    check_ranges(LOSSES[loss_type], loss_settings)
    surrogate = LOSSES[loss_type].surrogate(batch, loss_settings)
    values = -surrogate  # B T (5.12)
    ratio_metrics = {"ratio": ratio.detach()} | LOSSES[loss_type].clip_metrics(batch, loss_settings)
    metrics = _means_of_ratio_metrics(ratio_metrics, mask, importance_sampling_level)
    if beta > 0:
        kl = kl_estimate(logp, torch.where(mask, ref_logp, 0), kl_estimator)
        kl = kl * ratio if kl_bias_correction else kl
        values = values + beta * kl  # B T (5.13)
        metrics["kl"] = token_mean(kl.detach(), mask)
    loss = aggregate(values, mask, loss_type, max_completion_length, num_items)  # scalar (5.14)
    return loss, metrics


def microbatch_loss(
    logp: Float[Tensor, "R T"],
    advantages: Float[Tensor, " R"] | Float[Tensor, "R #T"],
    mask: Bool[Tensor, "R T"],
    num_rows: int,
    num_items: Int[Tensor, ""] | int,
    *,
    loss_type: str = "grpo",
    **settings,
) -> tuple[Float[Tensor, ""], LossMetrics]:
    r"""Compute a micro-batch's contribution to the loss of its update; the contributions sum to the whole loss.

    w_j = 1 \;\text{if the loss divides by } N, \;\text{else}\; B_j / B \tag{5.15}
    L_j = w_j \, L(j; N) \tag{5.16}

    L is `policy_loss`, which returns loss and metrics and takes `num_items` for every loss type. Losses that
    divide by the tokens of the whole update (`divides_by_update_tokens`) need no weight. The others are means over
    rows, so the weight of a micro-batch is its share of the rows. ("bnpo" is one of these. As in TRL, it takes the mean
    over the tokens of each micro-batch, so its value depends on the size of the micro-batches.)

    Args:
        logp: Log-probabilities of the B_j rows of micro-batch j (R in the shapes).
        advantages: Advantages of these rows, one per completion or one per token.
        mask: Mask of these rows.
        num_rows: B, the number of rows in the whole update.
        num_items: N, the number of tokens under the mask of the whole update.
        loss_type: Name of the loss, as in `policy_loss`.
        settings: Other arguments of `policy_loss`, among them `old_logp` and `ref_logp` of these rows.

    Returns:
        The contribution of the micro-batch, and its metrics, as in `policy_loss`. `backward()` also works for a
        micro-batch without tokens: the gradient is zero.
    """
    check_at_least("num_rows", num_rows, len(mask))
    share = 1.0 if divides_by_update_tokens(loss_type) else len(mask) / num_rows  # scalar (5.15)
    loss, metrics = policy_loss(logp, advantages, mask, loss_type=loss_type, num_items=num_items, **settings)
    loss = share * loss  # scalar (5.16)
    return loss, metrics


def _means_of_ratio_metrics(ratio_metrics: dict[str, Tensor], mask: Bool[Tensor, "B T"], level: str) -> LossMetrics:
    """Return the mean of each metric over the tokens of the mask, or over rows if it has one value per row, as in TRL.

    ratio_metrics: The importance ratio and the metrics computed from it, each (B, T) or (B, 1).
    """
    means, row_mean_names = {}, set()
    for name, values in ratio_metrics.items():
        # If rows have one token, a column may hold a value per row or per token; the level decides.
        if values.shape[1] == 1 and (mask.shape[1] > 1 or level == "sequence"):
            row_mean_names.add(name)
            means[name] = token_mean(values, torch.ones_like(values, dtype=torch.bool))
        else:
            means[name] = token_mean(values, mask)
    return LossMetrics(means, row_mean_names)
