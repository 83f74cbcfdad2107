r"""The advantages of completions, and returns to go: each equation beside the line that computes it.

`group_advantages` differs from the usual code in one step, on purpose. It first subtracts one reward of the group from
all rewards of the group, Eq. (2.8). On paper this changes nothing, since it cancels. In floating point it makes equal
rewards give advantages of *exactly* zero. `r - r.mean()` would leave a rounding residue, which the division by a
near-zero standard deviation makes large.

The standard deviation of the sample (ddof=1) or of the population (ddof=0) is a convention. TRL and verl use ddof=1;
open-instruct uses ddof=0 when it divides at all.
"""

import torch
from einops import reduce
from jaxtyping import Bool, Float
from torch import Tensor

from grpo_lab.base.checks import (
    check_all_finite,
    check_between,
    check_choice,
    check_dtype,
    check_positive,
    check_shapes,
)

SCALES = ("group", "batch", "none")


def group_advantages(
    rewards: Float[Tensor, "P G"], scale: str = "group", ddof: int = 1, eps: float = 1e-4
) -> Float[Tensor, "P G"]:
    r"""Score each completion against the others of its own prompt.

    d_{p,i} = r_{p,i} - r_{p,1} \tag{2.8}
    c_{p,i} = d_{p,i} - \frac{1}{G} \sum_j d_{p,j} \tag{2.9}
    \sigma_p = \sqrt{\frac{1}{G - \mathrm{ddof}} \sum_i c_{p,i}^2} \tag{2.10}
    A_{p,i} = \frac{c_{p,i}}{\sigma_p + \varepsilon} \tag{2.7}

    Args:
        rewards: r, finite numbers; a row holds the rewards of one prompt.
        scale: "group" divides by \sigma_p. "batch" divides by the standard deviation of all P*G rewards r around their
            common mean instead, with the same ddof, so easy and hard prompts keep their relative size. "none" returns
            c, as in Dr. GRPO.
        ddof: 1 for the standard deviation of the sample, 0 for that of the population.
        eps: \varepsilon > 0, which keeps the quotient finite.

    Returns:
        The advantages. In a group of equal rewards they are exactly zero for every `scale`, also in float32 and for
        rewards around a million. Eq. (2.8) ensures this: the mean of equal numbers may round to another number.

    Source: Shao et al. (2024), "DeepSeekMath", section 4.1.2; "none": Liu et al. (2025), "Understanding R1-Zero-Like
    Training", section 3.2; "batch": Hu et al. (2025), "REINFORCE++". Constants as in TRL.
    """
    check_choice("scale", scale, SCALES)
    check_choice("ddof", ddof, (0, 1))
    check_positive("eps", eps)
    check_shapes(rewards=(rewards, "P>0 G>0"))
    check_all_finite("rewards", rewards)
    if scale == "group" or (scale == "batch" and len(rewards) == 1):
        check_shapes(rewards=(rewards, f"P G>{ddof}"))
    rewards = rewards.to(torch.result_type(rewards, 1.0))
    from_first = rewards - rewards[:, :1]  # P G (2.8)
    centred = from_first - reduce(from_first, "P G -> P 1", "mean")  # P G (2.9)
    if scale == "none":
        return centred
    if scale == "batch":
        std = (rewards - rewards[0, 0]).std(correction=ddof)
        return centred / (std + eps)
    std = (centred.square().sum(-1, keepdim=True) / (rewards.shape[1] - ddof)).sqrt()  # P 1 (2.10)
    advantages = centred / (std + eps)  # P G (2.7)
    return advantages


def rloo_advantages(rewards: Float[Tensor, "P G"]) -> Float[Tensor, "P G"]:
    r"""Compare each completion with the mean of the *others* (leave one out).

    A_{p,i} = r_{p,i} - \frac{1}{G-1} \sum_{j \neq i} r_{p,j} \tag{2.4}

    It equals G / (G-1) times the centred reward c of Eq. (2.9). The baseline does not see r_i, so the estimate is
    unbiased.

    Args:
        rewards: r, finite numbers; G is at least 2.

    Source: Ahmadian et al. (2024), "Back to Basics"; Kool et al. (2019).
    """
    check_shapes(rewards=(rewards, "P G>1"))
    check_all_finite("rewards", rewards)
    rewards = rewards.to(torch.result_type(rewards, 1.0))
    from_first = rewards - rewards[:, :1]
    advantages = from_first - (from_first.sum(-1, keepdim=True) - from_first) / (from_first.shape[1] - 1)  # P G (2.4)
    return advantages


def best_of_group(rewards: Float[Tensor, "P G"]) -> Float[Tensor, "P G"]:
    r"""Keep the reward of the best completion of each group, and drop the others.

    A_{p,i} = r_{p,i} \, \mathbb{1}\big[\, r_{p,i} = \max_j r_{p,j} > \min_j r_{p,j} \big] \tag{2.12}

    If several completions share the highest reward, all of them keep it. A group of equal rewards has no best
    completion, so all its weights are zero. Any difference between rewards counts, however small.

    Args:
        rewards: r, finite numbers.
    """
    check_shapes(rewards=(rewards, "P G>0"))
    check_all_finite("rewards", rewards)
    rewards = rewards.to(torch.result_type(rewards, 1.0))
    best, worst = reduce(rewards, "P G -> P 1", "max"), reduce(rewards, "P G -> P 1", "min")
    weights = torch.where((rewards == best) & (best > worst), rewards, 0)  # P G (2.12)
    return weights


def process_advantages(
    step_rewards: Float[Tensor, "P G T"], step_mask: Bool[Tensor, "P G T"], eps: float = 1e-4
) -> Float[Tensor, "P G T"]:
    r"""Credit every token with the steps that end at or after it (process supervision).

    d_{p,i,t} = s_{p,i,t} \, \big( r_{p,i,t} - \min_{j,u:\, s_{p,j,u} = 1} r_{p,j,u} \big) \tag{2.14}
    \bar d_p = \frac{1}{\max(n_p, 1)} \sum_{i,t} d_{p,i,t}, \quad n_p = \sum_{i,t} s_{p,i,t} \tag{2.15}
    c_{p,i,t} = s_{p,i,t} \, (d_{p,i,t} - \bar d_p) \tag{2.16}
    \sigma_p = \sqrt{\frac{1}{\max(n_p - 1, 1)} \sum_{i,t} c_{p,i,t}^2} \tag{2.17}
    \tilde r_{p,i,t} = \frac{c_{p,i,t}}{\sigma_p + \varepsilon} \tag{2.18}
    A_{p,i,t} = \sum_{u \ge t} \tilde r_{p,i,u} \tag{2.19}

    All step rewards of a group are normalised together, at whichever tokens they are. The smallest one is subtracted
    from each, Eq. (2.14); it cancels in Eq. (2.16), as Eq. (2.8) does. If each completion has one step, at its last
    token, then every token gets `group_advantages` of that reward.

    Args:
        step_rewards: r, finite numbers where the mask is True; values elsewhere have no effect, NaN included.
        step_mask: s, True at the last token of each step.
        eps: \varepsilon > 0, which keeps the quotient finite.

    Returns:
        The advantage of each token. It is zero, up to rounding, after the last step of a completion. It is exactly zero
        everywhere in a group of equal step rewards (also in float32 and for rewards around a million), of one step, or
        of none.

    Source: Shao et al. (2024), "DeepSeekMath", section 4.1.3.
    """
    check_positive("eps", eps)
    check_shapes(step_rewards=(step_rewards, "P G>0 T>0"), step_mask=(step_mask, "P G T"))
    check_dtype("step_mask", step_mask, "bool")
    check_all_finite("step_rewards", step_rewards[step_mask])
    step_rewards = step_rewards.to(torch.result_type(step_rewards, 1.0))
    least = torch.where(step_mask, step_rewards, torch.inf).amin((1, 2), keepdim=True)
    # Not a product with the mask: 0 times NaN is NaN, and so is 0 times the infinite `least` of a group without steps.
    from_least = torch.where(step_mask, step_rewards - least, 0)  # P G T (2.14)
    count = step_mask.sum((1, 2), keepdim=True)
    mean = from_least.sum((1, 2), keepdim=True) / count.clamp(min=1)  # P 1 1 (2.15)
    centred = step_mask * (from_least - mean)  # P G T (2.16)
    std = (centred.square().sum((1, 2), keepdim=True) / (count - 1).clamp(min=1)).sqrt()  # P 1 1 (2.17)
    scaled = centred / (std + eps)  # P G T (2.18)
    advantages = scaled.flip(-1).cumsum(-1).flip(-1)  # P G T (2.19)
    return advantages


def return_to_go(rewards: Float[Tensor, "P G T"], gamma: float) -> Float[Tensor, "P G T"]:
    r"""Credit every token with the discounted rewards from it onwards.

    g_{p,i,t} = r_{p,i,t} + \gamma \, g_{p,i,t+1} \tag{2.20}

    After the last token g is zero.

    Args:
        rewards: r, a finite number for each token; zero where there is no reward.
        gamma: Discount factor, from 0 (only the reward of this token) to 1 (all following rewards in full). The result
            is also right for a small gamma and a long completion, since no high power of gamma is computed.

    Source: Sutton and Barto, section 3.3, equation 3.9.
    """
    check_between("gamma", gamma, 0, 1)
    check_shapes(rewards=(rewards, "P G T"))
    check_all_finite("rewards", rewards)
    rewards = rewards.to(torch.result_type(rewards, 1.0))
    returns: Tensor | float = 0.0
    all_returns = torch.zeros_like(rewards)
    for t in reversed(range(rewards.shape[-1])):
        returns = rewards[..., t] + gamma * returns  # P G (2.20)
        all_returns[..., t] = returns
    return all_returns
