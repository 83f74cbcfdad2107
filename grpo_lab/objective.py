r"""The GRPO objective and its relatives, from importance ratio to loss.

Read it from the top: ratio, surrogate (what one token contributes), aggregation (how tokens become one number), and
`policy_loss`, which puts them together. Where this file departs from the papers, on purpose: constants and
conventions are TRL's, so that numbers carry over; each function says where another engine differs. sg[x] is x with
its gradient stopped.
"""

import math

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

from grpo_lab.kl import ESTIMATORS, kl_estimate

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
LOSSES_BY_TOKENS = ("dapo", "cispo", "vespo")  # divided by the tokens of the whole update, `num_items`
LEVELS = ("token", "sequence")


def importance_ratio(
    logp: Float[Tensor, "B T"], old_logp: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], level: str = "token"
) -> Float[Tensor, "B #T"]:
    r"""How much more likely has the policy become since it sampled?

    \lambda_{b,t} = \log \pi_{b,t} - \mathrm{sg}[\log \pi^{\mathrm{old}}_{b,t}] \tag{5.1}
    r_{b,t} = e^{\lambda_{b,t}} \tag{5.2}
    s_b = \exp \frac{\sum_t m_{b,t} \lambda_{b,t}}{\max(\sum_t m_{b,t}, 1)} \tag{5.3}

    Args:
        logp: log-probabilities under the policy that is being trained, shape (B, T).
        old_logp: the same under the policy that sampled, shape (B, T); its gradient is stopped here.
        mask: m, shape (B, T).
        level: "token" for r, or "sequence" for s, the length-normalised ratio of GSPO.

    Returns:
        Shape (B, T) for "token", (B, 1) for "sequence".

    Raises:
        ValueError: for another level.

    Source: token: Schulman et al. (2017), "Proximal policy optimization", section 3; sequence: Zheng et al. (2025),
    "Group Sequence Policy Optimization", section 4.1.
    """
    if level not in LEVELS:
        raise ValueError(f"level is {level!r}; allowed are 'token' and 'sequence'")
    log_ratio = torch.where(mask, logp - old_logp.detach(), 0)  # B T (5.1)
    if level == "token":
        ratio = log_ratio.exp()  # B T (5.2)
        return ratio
    sequence_ratio = (log_ratio.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)).exp()  # B 1 (5.3)
    return sequence_ratio


def gspo_token_ratio(
    logp: Float[Tensor, "B T"], old_logp: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    r"""The sequence ratio as a value at every token, with the gradient of that token's own log-probability.

    \hat s_{b,t} = \mathrm{sg}[s_b] \, \exp(\log \pi_{b,t} - \mathrm{sg}[\log \pi_{b,t}]) \tag{5.4}

    With one advantage a sequence this gives the loss and gradient of GSPO; with an advantage a token it goes further.

    Source: Zheng et al. (2025), "Group Sequence Policy Optimization", section 4.3. Arguments as in `importance_ratio`.
    """
    sequence = importance_ratio(logp, old_logp, mask, "sequence").detach()
    ratio = sequence * (logp - logp.detach()).exp()  # B T (5.4)
    return ratio


def clipped_surrogate(
    ratio: Float[Tensor, "B #T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B #T"],
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    delta: float | None = None,
) -> Float[Tensor, "B #T"]:
    r"""What does a token contribute, once the ratio has moved? To be maximised.

    \bar r_{b,t} = \mathrm{clip}(r_{b,t},\; 1 - \epsilon,\; 1 + \epsilon_{\mathrm{high}}) \tag{5.5}
    \tilde r_{b,t} = \min(r_{b,t}, \delta) \tag{5.6}
    S_{b,t} = \min(\tilde r_{b,t} A_{b,t},\; \bar r_{b,t} A_{b,t}) \tag{5.7}

    The minimum takes the worse of two offers. For A > 0 it stops the push above 1 + epsilon_high, for A < 0 below 1 -
    epsilon; in the two other regions, where the policy has moved the wrong way, the gradient stays.

    Args:
        ratio: r, shape (B, T), or (B, 1) at the sequence level.
        advantages: A, shape (B,), one a completion, or (B, T).
        epsilon: lower clip range, between 0 and 1.
        epsilon_high: upper clip range; None means epsilon. DAPO takes 0.28.
        delta: if given, bounds the unclipped ratio from above, which limits the loss where A < 0. Greater than 1 +
            epsilon_high.

    Returns:
        Shape of the ratio, or (B, T) where the advantages have it.

    Source: Schulman et al. (2017), equation 7; epsilon_high: Yu et al. (2025), "DAPO", section 3.1; delta: the
    two-sided clipping of INTELLECT-2 (2025). verl bounds the loss for A < 0 by -3 A instead ("dual clip").
    """
    epsilon_high = epsilon if epsilon_high is None else epsilon_high
    _check_clip(epsilon, epsilon_high, delta)
    advantages = _per_token(advantages)
    clipped = ratio.clamp(1 - epsilon, 1 + epsilon_high)  # B T (5.5)
    bounded = ratio if delta is None else ratio.clamp(max=delta)  # B T (5.6)
    surrogate = torch.min(bounded * advantages, clipped * advantages)  # B T (5.7)
    return surrogate


def cispo_surrogate(
    ratio: Float[Tensor, "B #T"],
    logp: Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B #T"],
    bound: float,
) -> Float[Tensor, "B T"]:
    r"""Bound the weight of a token, and never drop its gradient.

    S_{b,t} = \mathrm{sg}[\min(r_{b,t}, \epsilon_{\mathrm{high}})] \, A_{b,t} \log \pi_{b,t} \tag{5.8}

    The bound is TRL's: `epsilon_high` itself, an absolute ceiling for the ratio (5.0 is usual). verl reads the same
    setting as clip(r, 1 - epsilon, 1 + epsilon_high). Translate it when you move: verl's upper bound 1 + x is x + 1
    here.

    Source: MiniMax (2025), "MiniMax-M1", section 3.1, equations 4 and 5.
    """
    surrogate = ratio.clamp(max=bound).detach() * _per_token(advantages) * logp  # B T (5.8)
    return surrogate


def sapo_surrogate(
    ratio: Float[Tensor, "B #T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B #T"],
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
) -> Float[Tensor, "B #T"]:
    r"""Replace the hard clip by a sigmoid gate, whose slope at ratio 1 is 1.

    \tau_{b,t} = \tau_{+} \;\text{if}\; A_{b,t} > 0, \;\text{else}\; \tau_{-} \tag{5.9}
    S_{b,t} = \frac{4}{\tau_{b,t}} \, \mathrm{sigmoid}\big(\tau_{b,t} (r_{b,t} - 1)\big) \, A_{b,t} \tag{5.10}

    Source: Gao et al. (2025), "Soft Adaptive Policy Optimization", section 3.
    """
    advantages = _per_token(advantages)
    tau = torch.where(advantages > 0, ratio.new_tensor(tau_pos), ratio.new_tensor(tau_neg))  # B 1 (5.9)
    surrogate = 4 / tau * torch.sigmoid(tau * (ratio - 1)) * advantages  # B T (5.10)
    return surrogate


def vespo_surrogate(
    logp: Float[Tensor, "B T"],
    old_logp: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B #T"],
) -> Float[Tensor, "B T"]:
    r"""Weight a whole sequence by a smooth function of its ratio, highest near 1.

    \log w_b = \sum_t m_{b,t} (\log \pi_{b,t} - \log \pi^{\mathrm{old}}_{b,t}) \tag{5.11}
    (k, \lambda) = (2, 3) \;\text{if}\; A_{b,t} \ge 0, \;\text{else}\; (3, 2) \tag{5.12}
    \varphi_b = \mathrm{sg}[\exp(\lambda + k \log w_b - \lambda w_b)] \tag{5.13}
    S_{b,t} = \varphi_b \, A_{b,t} \log \pi_{b,t} \tag{5.14}

    log w is held between log(1e-8) and 20, and each token's share between -20 and 20, as in TRL.

    Source: "VESPO: Variational Sequence-Level Soft Policy Optimization" (2026, arXiv 2602.10693); constants as in TRL.
    """
    advantages = _per_token(advantages)
    log_ratio = torch.where(mask, logp - old_logp, 0).clamp(-20, 20)
    log_w = log_ratio.sum(-1, keepdim=True).clamp(math.log(1e-8), 20)  # B 1 (5.11)
    k, lam = torch.where(advantages >= 0, 2.0, 3.0), torch.where(advantages >= 0, 3.0, 2.0)  # B 1 (5.12)
    phi = (lam + k * log_w - lam * log_w.exp()).exp().detach()  # B 1 (5.13)
    surrogate = phi * advantages * logp  # B T (5.14)
    return surrogate


def aggregate(
    values: Float[Tensor, "B #T"],
    mask: Bool[Tensor, "B T"],
    loss_type: str,
    max_completion_length: int | None = None,
    num_items: Real[Tensor, ""] | float | int | None = None,
) -> Float[Tensor, ""]:
    r"""Turn a number a token into one number, and so decide how much a long completion counts.

    n_b = \sum_t m_{b,t}, \quad u_b = \sum_t m_{b,t} \, v_{b,t} \tag{5.15}
    L_{\text{grpo, sapo}} = \frac{1}{B} \sum_b \frac{u_b}{\max(n_b, 1)} \tag{5.16}
    L_{\text{luspo}} = \frac{1}{B} \sum_b u_b \tag{5.17}
    L_{\text{dr\_grpo}} = \frac{1}{B \, T_{\max}} \sum_b u_b \tag{5.18}
    L_{\text{bnpo}} = \sum_b u_b \Big/ \max\big(\sum_b n_b, 1\big) \tag{5.19}
    L_{\text{dapo, cispo, vespo}} = \sum_b u_b \Big/ \max(N, 1) \tag{5.20}

    Args:
        values: v, shape (B, T) or (B, 1); what stands at masked positions does not matter, NaN included.
        mask: m, shape (B, T).
        loss_type: one of `LOSS_TYPES`.
        max_completion_length: T_max, needed by "dr_grpo": the length limit of the run, the same for every batch.
        num_items: N, tokens of the whole optimizer batch, for "dapo", "cispo" and "vespo". None means that this batch
            is the whole one.

    Returns:
        A scalar; zero for an empty mask. A fully masked row stays in the denominator B, as in TRL; verl leaves it out.

    Raises:
        ValueError: for another loss type, "dr_grpo" without a positive max_completion_length, or a negative num_items.

    Source: Shao et al. (2024), equation 3 (grpo); Liu et al. (2025), section 3.2 (dr_grpo); Yu et al. (2025), section
    3.3 (dapo); bnpo and luspo as in TRL. verl's names: token-mean ~ dapo, seq-mean-token-mean ~ grpo,
    seq-mean-token-sum-norm ~ dr_grpo.
    """
    if loss_type not in LOSS_TYPES:
        raise ValueError(f"loss_type is {loss_type!r}; allowed are {', '.join(map(repr, LOSS_TYPES))}")
    lengths, sums = mask.sum(-1), torch.where(mask, values, 0).sum(-1)  # B (5.15)
    if loss_type in ("grpo", "sapo"):
        return (sums / lengths.clamp(min=1)).mean()  # scalar (5.16)
    if loss_type == "luspo":
        return sums.mean()  # scalar (5.17)
    if loss_type == "dr_grpo":
        _check_max_length(max_completion_length)
        return sums.sum() / (len(mask) * max_completion_length)  # scalar (5.18)
    if loss_type == "bnpo":
        return sums.sum() / lengths.sum().clamp(min=1)  # scalar (5.19)
    total = lengths.sum() if num_items is None else torch.as_tensor(num_items)
    if num_items is not None and not total >= 0:
        raise ValueError(f"num_items is {num_items}; it has to be at least 0")
    return sums.sum() / total.clamp(min=1)  # scalar (5.20)


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
) -> tuple[Float[Tensor, ""], dict[str, float]]:
    r"""The loss of one batch, to be minimised: surrogate, KL term, aggregation, minus sign.

    v_{b,t} = -S_{b,t} \tag{5.21}
    v'_{b,t} = v_{b,t} + \beta \, k_{b,t} \tag{5.22}
    L = \mathrm{aggregate}(v', m) \tag{5.23}

    Args:
        logp: log-probabilities under the policy that is being trained, shape (B, T).
        advantages: A, shape (B,), one a completion, or (B, T), one a token.
        mask: m, shape (B, T), True where a token belongs to its completion.
        old_logp: under the policy that sampled, shape (B, T); None means the current policy, stopped (ratio exactly 1).
        ref_logp: under the reference policy, shape (B, T); needed if beta > 0.
        loss_type: one of `LOSS_TYPES`.
        importance_sampling_level: "token", or "sequence" (GSPO; luspo is meant for it).
        epsilon, epsilon_high, delta: as in `clipped_surrogate`. For "cispo", epsilon_high is the absolute bound.
        beta: weight of the KL term, at least 0.
        kl_estimator: as in `kl_estimate`.
        kl_bias_correction: multiply the KL term by the ratio (DeepSeek-V3.2; TRL's use_bias_correction_kl).
        max_completion_length, num_items: as in `aggregate`.

    Returns:
        The loss, and metrics under TRL's names as floats: "kl" (if beta > 0), "ratio", "clip_ratio/low_mean",
        "clip_ratio/high_mean", "clip_ratio/region_mean" ("cispo_clip_ratio" for "cispo"), each a mean over the tokens
        of the mask, or over rows where there is one value a row (sequence level), as in TRL.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    _check_loss_inputs(logp, advantages, mask, old_logp, ref_logp, beta, kl_estimator)
    old_logp = logp.detach() if old_logp is None else old_logp
    logp, old_logp, ref_logp = _kept(mask, logp, old_logp, ref_logp)
    advantages = _per_token(advantages)
    ratio = importance_ratio(logp, old_logp, mask, importance_sampling_level)
    surrogate = _surrogate(loss_type, ratio, logp, old_logp, mask, advantages, epsilon, epsilon_high, delta)
    values = -surrogate  # B T (5.21)
    metrics = _clip_metrics(loss_type, ratio.detach(), advantages, mask, epsilon, epsilon_high)
    if beta > 0:
        kl = kl_estimate(logp, ref_logp, kl_estimator)
        kl = kl * ratio if kl_bias_correction else kl
        values = values + beta * kl  # B T (5.22)
        metrics["kl"] = _masked_mean(kl.detach(), mask)
    loss = aggregate(values, mask, loss_type, max_completion_length, num_items)  # scalar (5.23)
    return loss, metrics


def part_loss(
    logp: Float[Tensor, "R T"],
    advantages: Float[Tensor, " R"],
    mask: Bool[Tensor, "R T"],
    rows: int,
    num_items: Int[Tensor, ""] | int,
    *,
    loss_type: str = "grpo",
    **settings,
) -> tuple[Float[Tensor, ""], dict[str, float]]:
    r"""What a micro-batch adds to the loss of its update: the parts add up to the loss of the whole, however it is cut.

    w_k = 1 \;\text{if the loss divides by } N, \;\text{else}\; R_k / R \tag{5.24}
    L_k = w_k \, L(k; N) \tag{5.25}

    L is `policy_loss`. Losses that divide by tokens are given those of the whole update, and need no weight. The others
    are means over rows, so a micro-batch counts by its share of the rows. ("bnpo", as in TRL, takes the mean over the
    tokens of each micro-batch; for it alone the cut matters.)

    Args:
        logp, advantages, mask: of the R_k rows of this micro-batch, shapes (R_k, T), (R_k,) and (R_k, T).
        rows: R, rows of the whole update.
        num_items: N, tokens under the mask of the whole update.
        loss_type, settings: as in `policy_loss`, its `old_logp` and `ref_logp` for these rows among them.

    Returns:
        The part's loss, and its metrics as in `policy_loss`.
    """
    share = 1.0 if loss_type in LOSSES_BY_TOKENS else len(mask) / rows  # scalar (5.24)
    loss, metrics = policy_loss(logp, advantages, mask, loss_type=loss_type, num_items=num_items, **settings)
    loss = share * loss  # scalar (5.25)
    return loss, metrics


def _surrogate(loss_type, ratio, logp, old_logp, mask, advantages, epsilon, epsilon_high, delta):
    if loss_type == "cispo":
        return cispo_surrogate(ratio, logp, advantages, epsilon if epsilon_high is None else epsilon_high)
    if loss_type == "sapo":
        return sapo_surrogate(ratio, advantages)
    if loss_type == "vespo":
        return vespo_surrogate(logp, old_logp, mask, advantages)
    return clipped_surrogate(ratio, advantages, epsilon, epsilon_high, delta)


def _clip_metrics(loss_type, ratio, advantages, mask, epsilon, epsilon_high):
    epsilon_high = epsilon if epsilon_high is None else epsilon_high
    metrics = {"ratio": _masked_mean(ratio, mask)}
    if loss_type == "cispo":
        return metrics | {"cispo_clip_ratio": _masked_mean((ratio > epsilon_high) & (advantages > 0), mask)}
    if loss_type in ("sapo", "vespo"):
        return metrics
    low = (ratio < 1 - epsilon) & (advantages < 0)
    high = (ratio > 1 + epsilon_high) & (advantages > 0)
    return metrics | {
        "clip_ratio/low_mean": _masked_mean(low, mask),
        "clip_ratio/high_mean": _masked_mean(high, mask),
        "clip_ratio/region_mean": _masked_mean(low | high, mask),
    }


def _kept(mask: Tensor, *tensors: Tensor | None) -> list[Tensor | None]:
    """Zero under the mask. `aggregate` keeps garbage there out of the loss; 0 * NaN would still reach the gradient."""
    return [None if x is None else torch.where(mask, x, 0) for x in tensors]


def _masked_mean(values: Tensor, mask: Tensor) -> float:
    if values.shape[1] < mask.shape[1]:
        mask = torch.ones_like(values, dtype=torch.bool)
    return (torch.where(mask, values, 0).sum() / mask.sum().clamp(min=1)).item()


def _per_token(advantages: Tensor) -> Tensor:
    """(B,) becomes (B, 1). Left as it is, it would be read as (1, T) wherever B happens to equal T."""
    return rearrange(advantages, "B -> B 1") if advantages.ndim == 1 else advantages


def _check_clip(epsilon, epsilon_high, delta):
    if not 0 <= epsilon <= 1:
        raise ValueError(f"epsilon is {epsilon}; it has to lie between 0 and 1")
    if not epsilon_high >= 0:
        raise ValueError(f"epsilon_high is {epsilon_high}; it has to be at least 0")
    if delta is not None and not delta > 1 + epsilon_high:
        raise ValueError(f"delta is {delta}; it has to be greater than 1 + epsilon_high = {1 + epsilon_high}")


def _check_max_length(max_completion_length):
    if max_completion_length is None or max_completion_length < 1:
        raise ValueError(
            f"max_completion_length is {max_completion_length}; loss_type 'dr_grpo' needs a positive number"
        )


def _check_loss_inputs(logp, advantages, mask, old_logp, ref_logp, beta, kl_estimator):
    if mask.shape != logp.shape or mask.dtype != torch.bool:
        raise ValueError(
            f"mask is {mask.dtype} {tuple(mask.shape)}; it has to be bool, of logp's shape {tuple(logp.shape)}"
        )
    if advantages.shape not in {logp.shape[:1], (len(logp), 1), logp.shape}:
        raise ValueError(
            f"advantages has shape {tuple(advantages.shape)}; allowed are (B,) and (B, T) for logp {tuple(logp.shape)}"
        )
    for name, other in (("old_logp", old_logp), ("ref_logp", ref_logp)):
        if other is not None and other.shape != logp.shape:
            raise ValueError(f"{name} has shape {tuple(other.shape)}; it has to be logp's, {tuple(logp.shape)}")
    if not beta >= 0:
        raise ValueError(f"beta is {beta}; it has to be at least 0")
    if kl_estimator not in ESTIMATORS:
        raise ValueError(f"kl_estimator is {kl_estimator!r}; allowed are {', '.join(map(repr, ESTIMATORS))}")
    if beta > 0 and ref_logp is None:
        raise ValueError(f"ref_logp is None; beta = {beta} needs the reference's log-probabilities")
