"""The averages over the tokens of a batch; they differ in the weight that they give to a long completion."""

import torch
from jaxtyping import Bool, Float, Real
from torch import Tensor

from grpo_lab.base.checks import InputError, check_choice, check_shapes
from grpo_lab.objective.losses import LOSSES


def aggregate(
    values: Float[Tensor, "B #T"],
    mask: Bool[Tensor, "B T"],
    loss_type: str,
    max_completion_length: int | None = None,
    num_items: Real[Tensor, ""] | float | int | None = None,
) -> Float[Tensor, ""]:
    r"""Turn one number per token into a single number, and so decide how much a long completion counts.

    n_b = \sum_t m_{b,t}, \quad u_b = \sum_t m_{b,t} \, v_{b,t} \tag{5.20}
    L_{\text{grpo, sapo}} = \frac{1}{B} \sum_b \frac{u_b}{\max(n_b, 1)} \tag{5.21}
    L_{\text{luspo}} = \frac{1}{B} \sum_b u_b \tag{5.22}
    L_{\text{dr\_grpo}} = \frac{1}{B \, T_{\max}} \sum_b u_b \tag{5.23}
    L_{\text{bnpo}} = \sum_b u_b \Big/ \max\big(\sum_b n_b, 1\big) \tag{5.24}
    L_{\text{dapo, cispo, vespo}} = \sum_b u_b \Big/ \max(N, 1) \tag{5.25}

    Args:
        values: v, one number per token, or one column if all tokens of a row share a value. Values where the mask is
            False have no effect, NaN included.
        mask: m, True at each token that counts.
        loss_type: Name of the loss, as in the equations.
        max_completion_length: T_max, the length limit of the run, the same for every batch; "dr_grpo" needs it.
        num_items: N, the number of tokens in the whole optimizer batch, for "dapo", "cispo" and "vespo". None: this
            batch is the whole optimizer batch.

    Returns:
        A scalar; zero if the mask is False everywhere. A fully masked row counts in the denominator B, as in TRL;
        verl's `agg_loss` leaves it out unless it is given the size of the batch.

    Source: Shao et al. (2024), equation 3 (grpo); Liu et al. (2025), section 3.2 (dr_grpo); Yu et al. (2025), section
    3.3 (dapo); bnpo and luspo as in TRL. verl's names: token-mean ~ dapo, seq-mean-token-mean ~ grpo,
    seq-mean-token-sum-norm ~ dr_grpo.
    """
    check_choice("loss_type", loss_type, LOSSES)
    check_shapes(mask=(mask, "B T"), values=(values, "B #T"))
    if LOSSES[loss_type].divided_by == "max_completion_length" and not (max_completion_length or 0) >= 1:
        raise InputError("max_completion_length", max_completion_length, f"{loss_type!r} needs one of at least 1")
    if num_items is not None and not num_items >= 0:
        raise InputError("num_items", num_items, "it must be at least 0")
    lengths, sums = mask.sum(-1), torch.where(mask, values, 0).sum(-1)  # B (5.20)
    match LOSSES[loss_type].divided_by:
        case "completion_tokens":
            return (sums / lengths.clamp(min=1)).mean()  # scalar (5.21)
        case "completions":
            return sums.mean()  # scalar (5.22)
        case "max_completion_length":
            return sums.sum() / (len(mask) * max_completion_length)  # scalar (5.23)
        case "microbatch_tokens":
            return sums.sum() / lengths.sum().clamp(min=1)  # scalar (5.24)
        case "update_tokens":
            total = lengths.sum() if num_items is None else torch.as_tensor(num_items)
            return sums.sum() / total.clamp(min=1)  # scalar (5.25)
    raise AssertionError("`Loss` accepts no other divisor")


def token_mean(
    values: Float[Tensor, "B #T"] | Bool[Tensor, "B #T"],
    mask: Bool[Tensor, "B T"],
    num_items: Real[Tensor, ""] | float | int | None = None,
) -> Float[Tensor, ""]:
    """Return the mean over the tokens of the mask, or the sum divided by `num_items`: the average of "dapo"."""
    total = mask.sum() if num_items is None else torch.as_tensor(num_items)
    return torch.where(mask, values, 0).sum() / total.clamp(min=1)
