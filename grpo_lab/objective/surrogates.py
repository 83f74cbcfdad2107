r"""The importance ratio, and the surrogates: the contribution of each token to the objective, which is maximised.

Constants and conventions are TRL's, so that settings and metrics can be compared; each function says where another
engine differs. sg[x] is x with its gradient stopped.
"""

import math

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from grpo_lab.base.checks import InputError, check_at_least, check_between, check_choice, check_shapes

IMPORTANCE_SAMPLING_LEVELS = ("token", "sequence")


def importance_ratio(
    logp: Float[Tensor, "B T"], old_logp: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], level: str = "token"
) -> Float[Tensor, "B #T"]:
    r"""Compute the ratio of each token's probability under the policy to that under the policy that sampled it.

    \lambda_{b,t} = \log \pi_{b,t} - \mathrm{sg}[\log \pi^{\mathrm{old}}_{b,t}] \tag{5.6}
    r_{b,t} = e^{\lambda_{b,t}} \tag{5.7}
    s_b = \exp \frac{\sum_t m_{b,t} \lambda_{b,t}}{\max(\sum_t m_{b,t}, 1)} \tag{5.8}

    Args:
        logp: Log-probabilities of the tokens under the policy that is being trained.
        old_logp: Log-probabilities of the tokens under the policy that sampled; their gradient is stopped here.
        mask: m, True at each token that counts. Values elsewhere do not change s, NaN included.
        level: "token" for r, or "sequence" for s, the length-normalised ratio of GSPO.

    Where the mask is False, r has no meaning.

    Source: token: Schulman et al. (2017), "Proximal policy optimization", section 3; sequence: Zheng et al. (2025),
    "Group Sequence Policy Optimization", section 4.1.
    """
    check_choice("level", level, IMPORTANCE_SAMPLING_LEVELS)
    check_shapes(logp=(logp, "B T"), old_logp=(old_logp, "B T"), mask=(mask, "B T"))
    log_ratio = torch.where(mask, logp - old_logp.detach(), 0)  # B T (5.6)
    if level == "token":
        ratio = log_ratio.exp()  # B T (5.7)
        return ratio
    sequence_ratio = (log_ratio.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)).exp()  # B 1 (5.8)
    return sequence_ratio


def gspo_token_ratio(
    logp: Float[Tensor, "B T"], old_logp: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    r"""Compute the sequence ratio at every token, with the gradient of that token's own log-probability.

    \hat s_{b,t} = \mathrm{sg}[s_b] \, \exp(\log \pi_{b,t} - \mathrm{sg}[\log \pi_{b,t}]) \tag{5.27}

    With one advantage per sequence this gives the loss and gradient of GSPO. With one per token, each advantage weights
    the gradient of its own token, which s_b of Eq. (5.8) cannot do. The arguments are those of `importance_ratio`,
    which checks them; values where the mask is False have no effect.

    Source: Zheng et al. (2025), "Group Sequence Policy Optimization", section 4.3.
    """
    sequence = importance_ratio(logp, old_logp, mask, "sequence").detach()
    ratio = sequence * torch.where(mask, logp - logp.detach(), 0).exp()  # B T (5.27)
    return ratio


def clipped_surrogate(
    ratio: Float[Tensor, "B #T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B #T"],
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    delta: float | None = None,
) -> Float[Tensor, "B #T"]:
    r"""Compute a token's contribution to the objective, clipped if the ratio leaves [1 - epsilon, 1 + epsilon_high].

    \bar r_{b,t} = \mathrm{clip}(r_{b,t},\; 1 - \epsilon,\; 1 + \epsilon_{\mathrm{high}}) \tag{5.9}
    \tilde r_{b,t} = \min(r_{b,t}, \delta) \tag{5.10}
    S_{b,t} = \min(\tilde r_{b,t} A_{b,t},\; \bar r_{b,t} A_{b,t}) \tag{5.5}

    For A > 0 the gradient is zero above 1 + epsilon_high, and for A < 0 below 1 - epsilon. On the other side of the
    clip range, where the policy has moved against the advantage, the minimum takes the unclipped value, so the gradient
    stays.

    Args:
        ratio: r, one column at the sequence level.
        advantages: A, one per completion or one per token.
        epsilon: Lower clip range, between 0 and 1.
        epsilon_high: Upper clip range. None: epsilon. DAPO uses 0.28.
        delta: Upper bound of the unclipped ratio, which limits the loss for A < 0. It must be greater than
            1 + epsilon_high. None: no bound.

    Source: Schulman et al. (2017), equation 7; epsilon_high: Yu et al. (2025), "DAPO", section 3.1; delta: the
    two-sided clipping of INTELLECT-2 (2025). verl bounds the loss for A < 0 by -3 A instead ("dual clip").
    """
    epsilon_high = upper_clip_range(epsilon, epsilon_high)
    check_clip_range(epsilon, epsilon_high, delta)
    check_shapes(ratio=(ratio, "B #T"), advantages=(advantages, "B | B #T"))
    advantages = per_token(advantages)
    clipped = ratio.clamp(1 - epsilon, 1 + epsilon_high)  # B T (5.9)
    bounded = ratio if delta is None else ratio.clamp(max=delta)  # B T (5.10)
    surrogate = torch.min(bounded * advantages, clipped * advantages)  # B T (5.5)
    return surrogate


def cispo_surrogate(
    ratio: Float[Tensor, "B #T"],
    logp: Float[Tensor, "B T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B #T"],
    bound: float,
) -> Float[Tensor, "B T"]:
    r"""Bound the weight of a token, and never drop its gradient.

    S_{b,t} = \mathrm{sg}[\min(r_{b,t}, \epsilon_{\mathrm{high}})] \, A_{b,t} \log \pi_{b,t} \tag{5.28}

    Args:
        ratio: r, as `importance_ratio` returns it; one column at the sequence level.
        logp: Log-probabilities of the tokens under the policy that is being trained.
        advantages: A, one per completion or one per token.
        bound: \epsilon_high, an absolute upper bound of the ratio, as in TRL (5.0 is usual). verl clips the ratio
            between 1 - epsilon and 1 + epsilon_high: its epsilon_high = x is bound = 1 + x here.

    Source: MiniMax (2025), "MiniMax-M1", section 3.1, equations 4 and 5.
    """
    check_shapes(logp=(logp, "B T"), ratio=(ratio, "B #T"), advantages=(advantages, "B | B #T"))
    surrogate = ratio.clamp(max=bound).detach() * per_token(advantages) * logp  # B T (5.28)
    return surrogate


def sapo_surrogate(
    ratio: Float[Tensor, "B #T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B #T"],
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
) -> Float[Tensor, "B #T"]:
    r"""Replace the hard clip by a sigmoid gate, whose slope at ratio 1 is 1.

    \tau_{b,t} = \tau_{+} \;\text{if}\; A_{b,t} > 0, \;\text{else}\; \tau_{-} \tag{5.29}
    S_{b,t} = \frac{4}{\tau_{b,t}} \, \mathrm{sigmoid}\big(\tau_{b,t} (r_{b,t} - 1)\big) \, A_{b,t} \tag{5.30}

    Args:
        ratio: r, one column at the sequence level.
        advantages: A, one per completion or one per token.
        tau_pos: \tau_{+}, the temperature of the gate for positive advantages.
        tau_neg: \tau_{-}, the temperature of the gate for the other advantages.

    Source: Gao et al. (2025), "Soft Adaptive Policy Optimization", section 3.
    """
    check_shapes(ratio=(ratio, "B #T"), advantages=(advantages, "B | B #T"))
    advantages = per_token(advantages)
    tau = torch.where(advantages > 0, ratio.new_tensor(tau_pos), ratio.new_tensor(tau_neg))  # B T (5.29)
    surrogate = 4 / tau * torch.sigmoid(tau * (ratio - 1)) * advantages  # B T (5.30)
    return surrogate


def vespo_surrogate(
    logp: Float[Tensor, "B T"],
    old_logp: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    advantages: Float[Tensor, " B"] | Float[Tensor, "B #T"],
    k_pos: float = 2.0,
    lambda_pos: float = 3.0,
    k_neg: float = 3.0,
    lambda_neg: float = 2.0,
) -> Float[Tensor, "B T"]:
    r"""Weight a whole sequence by a smooth function of its ratio, highest at k / lambda.

    \log w_b = \sum_t m_{b,t} (\log \pi_{b,t} - \log \pi^{\mathrm{old}}_{b,t}) \tag{5.31}
    (k, \lambda)_{b,t} = (k_{+}, \lambda_{+}) \text{ if } A_{b,t} \ge 0 \text{ else } (k_{-}, \lambda_{-}) \tag{5.32}
    \varphi_{b,t} = \mathrm{sg}[\exp(\lambda_{b,t} + k_{b,t} \log w_b - \lambda_{b,t} w_b)] \tag{5.33}
    S_{b,t} = \varphi_{b,t} \, A_{b,t} \log \pi_{b,t} \tag{5.34}

    With one advantage per completion, k, lambda and phi are the same for all its tokens. log w is clamped to
    [log(1e-8), 20], and the log-ratio of each token to [-20, 20], as in TRL.

    Source: "VESPO: Variational Sequence-Level Soft Policy Optimization" (2026, arXiv 2602.10693); defaults as in TRL.
    """
    check_shapes(
        logp=(logp, "B T"), old_logp=(old_logp, "B T"), mask=(mask, "B T"), advantages=(advantages, "B | B #T")
    )
    advantages = per_token(advantages)
    log_ratio = torch.where(mask, logp - old_logp, 0).clamp(-20, 20)
    log_w = log_ratio.sum(-1, keepdim=True).clamp(math.log(1e-8), 20)  # B 1 (5.31)
    k, lam = (
        torch.where(advantages >= 0, logp.new_tensor(k_pos), logp.new_tensor(k_neg)),
        torch.where(advantages >= 0, logp.new_tensor(lambda_pos), logp.new_tensor(lambda_neg)),
    )  # B T (5.32)
    phi = (lam + k * log_w - lam * log_w.exp()).exp().detach()  # B T (5.33)
    surrogate = phi * advantages * logp  # B T (5.34)
    return surrogate


def per_token(advantages: Tensor) -> Tensor:
    """Return advantages of shape (B,) as a column (B, 1), since (B,) would be broadcast as (1, T) if B = T."""
    return rearrange(advantages, "B -> B 1") if advantages.ndim == 1 else advantages


def upper_clip_range(epsilon: float, epsilon_high: float | None) -> float:
    """Return the upper clip range: `epsilon_high`, or `epsilon` if `epsilon_high` is None."""
    return epsilon if epsilon_high is None else epsilon_high


def check_clip_range(epsilon: float, epsilon_high: float | None, delta: float | None) -> None:
    """Raise InputError if epsilon is not in [0, 1], epsilon_high is negative, or delta is at most 1 + epsilon_high."""
    epsilon_high = upper_clip_range(epsilon, epsilon_high)
    check_between("epsilon", epsilon, 0, 1)
    check_at_least("epsilon_high", epsilon_high, 0)
    if delta is not None and not delta > 1 + epsilon_high:
        raise InputError("delta", delta, f"it must be greater than 1 + epsilon_high = {1 + epsilon_high}")
