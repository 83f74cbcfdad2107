r"""Advantages: how much better was this completion than the others of its prompt?

Axes: P prompts, G completions of a prompt, T tokens. Where this departs from the usual code, on purpose: rewards are
first measured from one reward of their own group, Eq. (2.1). On paper this changes nothing, since it cancels. In
floating point it makes equal rewards give advantages of *exactly* zero, where `r - r.mean()` leaves a rounding
residue that the division by a near-zero standard deviation blows up.

Sample (ddof=1, as in TRL and verl) or population (ddof=0, as in open-instruct when it is asked to divide) standard
deviation is a convention.

A ValueError names an argument that has not the shape, or is not in the range, that the function states.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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

    d_{p,i} = r_{p,i} - r_{p,1} \tag{2.1}
    c_{p,i} = d_{p,i} - \frac{1}{G} \sum_j d_{p,j} \tag{2.2}
    \sigma_p = \sqrt{\frac{1}{G - \mathrm{ddof}} \sum_i c_{p,i}^2} \tag{2.3}
    A_{p,i} = \frac{c_{p,i}}{\sigma_p + \varepsilon} \tag{2.4}

    Args:
        rewards: r, finite numbers; a row holds the rewards of one prompt.
        scale: "group" divides by \sigma_p; "batch" puts the standard deviation of all P*G rewards r around their common
            mean in its place, with the same ddof (easy and hard prompts then keep their relative size); "none" returns
            c, as in Dr. GRPO.
        ddof: 1 for the sample, 0 for the population standard deviation.
        eps: \varepsilon > 0, keeps the quotient finite.

    Returns:
        Exactly zero in a group of equal rewards, whatever `scale`: also in float32, and a million from zero. This is
            what Eq. (2.1) is for: a mean of equal numbers may round to another number.

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
    from_first = rewards - rewards[:, :1]  # P G (2.1)
    centred = from_first - reduce(from_first, "P G -> P 1", "mean")  # P G (2.2)
    if scale == "none":
        return centred
    if scale == "batch":
        std = (rewards - rewards[0, 0]).std(correction=ddof)
        return centred / (std + eps)
    std = (centred.square().sum(-1, keepdim=True) / (rewards.shape[1] - ddof)).sqrt()  # P 1 (2.3)
    advantages = centred / (std + eps)  # P G (2.4)
    return advantages


def rloo_advantages(rewards: Float[Tensor, "P G"]) -> Float[Tensor, "P G"]:
    r"""Compare each completion with the mean of the *others* (leave one out).

    A_{p,i} = r_{p,i} - \frac{1}{G-1} \sum_{j \neq i} r_{p,j} \tag{2.5}

    It equals G / (G-1) times the centred reward c of Eq. (2.2). The baseline does not see r_i, so the estimate is
    unbiased.

    Args:
        rewards: r, finite numbers, G at least 2.

    Source: Ahmadian et al. (2024), "Back to Basics"; Kool et al. (2019).
    """
    check_shapes(rewards=(rewards, "P G>1"))
    check_all_finite("rewards", rewards)
    rewards = rewards.to(torch.result_type(rewards, 1.0))
    r = rewards - rewards[:, :1]
    advantages = r - (r.sum(-1, keepdim=True) - r) / (r.shape[1] - 1)  # P G (2.5)
    return advantages


def best_of_group(rewards: Float[Tensor, "P G"]) -> Float[Tensor, "P G"]:
    r"""Keep the reward of the best completion of each group, and drop the others.

    A_{p,i} = r_{p,i} \, \mathbb{1}\big[\, r_{p,i} = \max_j r_{p,j} > \min_j r_{p,j} \big] \tag{2.6}

    Ties at the top all keep their reward. A group of equal rewards has no best, so all its weights are zero. However
    small its lead, the best is the best.

    Args:
        rewards: r, finite numbers.
    """
    check_shapes(rewards=(rewards, "P G>0"))
    check_all_finite("rewards", rewards)
    rewards = rewards.to(torch.result_type(rewards, 1.0))
    best, worst = reduce(rewards, "P G -> P 1", "max"), reduce(rewards, "P G -> P 1", "min")
    weights = torch.where((rewards == best) & (best > worst), rewards, 0)  # P G (2.6)
    return weights


def process_advantages(
    step_rewards: Float[Tensor, "P G T"], step_mask: Bool[Tensor, "P G T"], eps: float = 1e-4
) -> Float[Tensor, "P G T"]:
    r"""Credit every token with the steps that end at or after it (process supervision).

    d_{p,i,t} = s_{p,i,t} \, \big( r_{p,i,t} - \min_{j,u:\, s_{p,j,u} = 1} r_{p,j,u} \big) \tag{2.7}
    \bar d_p = \frac{1}{\max(n_p, 1)} \sum_{i,t} d_{p,i,t}, \quad n_p = \sum_{i,t} s_{p,i,t} \tag{2.8}
    c_{p,i,t} = s_{p,i,t} \, (d_{p,i,t} - \bar d_p) \tag{2.9}
    \sigma_p = \sqrt{\frac{1}{\max(n_p - 1, 1)} \sum_{i,t} c_{p,i,t}^2} \tag{2.10}
    \tilde r_{p,i,t} = \frac{c_{p,i,t}}{\sigma_p + \varepsilon} \tag{2.11}
    A_{p,i,t} = \sum_{u \ge t} \tilde r_{p,i,u} \tag{2.12}

    All step rewards of a group are normalised together, whatever position they stand at. Measuring them from the
    smallest, Eq. (2.7), cancels in Eq. (2.9), as Eq. (2.1) does. With one step a completion, at its last token, every
    token gets `group_advantages` of that reward.

    Args:
        step_rewards: r, finite numbers where the mask is True. Elsewhere anything may stand, even NaN,
            and in a group of no step the minimum is infinite. So choose with torch.where(step_mask, x, 0) rather than
            multiply: 0 times NaN or infinity is NaN.
        step_mask: s, True at the last token of each step.
        eps: \varepsilon > 0.

    Returns:
        Zero, but for rounding, after the last step of a completion. Exactly zero everywhere in a group of equal step
            rewards (also in float32, and a million from zero), of one step, or of none.

    Source: Shao et al. (2024), "DeepSeekMath", section 4.1.3.
    """
    check_positive("eps", eps)
    check_shapes(step_rewards=(step_rewards, "P G>0 T>0"), step_mask=(step_mask, "P G T"))
    check_dtype("step_mask", step_mask, "bool")
    check_all_finite("step_rewards", step_rewards[step_mask])
    step_rewards = step_rewards.to(torch.result_type(step_rewards, 1.0))
    least = torch.where(step_mask, step_rewards, torch.inf).amin((1, 2), keepdim=True)
    from_least = torch.where(step_mask, step_rewards - least, 0)  # P G T (2.7)
    count = step_mask.sum((1, 2), keepdim=True)
    mean = from_least.sum((1, 2), keepdim=True) / count.clamp(min=1)  # P 1 1 (2.8)
    centred = step_mask * (from_least - mean)  # P G T (2.9)
    std = (centred.square().sum((1, 2), keepdim=True) / (count - 1).clamp(min=1)).sqrt()  # P 1 1 (2.10)
    scaled = centred / (std + eps)  # P G T (2.11)
    advantages = scaled.flip(-1).cumsum(-1).flip(-1)  # P G T (2.12)
    return advantages


def return_to_go(rewards: Float[Tensor, "P G T"], gamma: float) -> Float[Tensor, "P G T"]:
    r"""Credit every token with the discounted rewards from it onwards.

    g_{p,i,t} = r_{p,i,t} + \gamma \, g_{p,i,t+1} \tag{2.13}

    Behind the last token g is zero.

    Args:
        rewards: r, a finite number for each token; zero where there is no reward.
        gamma: discount, from 0 (only this token's reward) to 1 (all that follow). A small gamma and a long completion
            are no trouble: no high power of gamma is needed.

    Source: Sutton and Barto, section 3.3, equation 3.9.
    """
    check_between("gamma", gamma, 0, 1)
    check_shapes(rewards=(rewards, "P G T"))
    check_all_finite("rewards", rewards)
    rewards = rewards.to(torch.result_type(rewards, 1.0))
    returns: Tensor | float = 0.0
    all_returns = torch.zeros_like(rewards)
    for t in reversed(range(rewards.shape[-1])):
        returns = rewards[..., t] + gamma * returns  # P G (2.13)
        all_returns[..., t] = returns
    return all_returns


@dataclass(frozen=True)
class Advantage:
    """An entry of `ADVANTAGES`: how rewards become advantages.

    compute: from rewards (P, G) and the settings of the run, a `GRPOConfig`, to advantages (P, G).
    reads: the settings that matter to it.
    smallest_group: the fewest completions of a prompt.
    """

    compute: Callable[[Tensor, Any], Tensor]
    reads: tuple[str, ...] = ()
    smallest_group: int = 2


ADVANTAGES = {
    "group": Advantage(lambda rewards, config: group_advantages(rewards, config.scale_rewards), ("scale_rewards",)),
    "rloo": Advantage(lambda rewards, config: rloo_advantages(rewards)),
    "best_of_group": Advantage(lambda rewards, config: best_of_group(rewards)),
    "none": Advantage(lambda rewards, config: rewards.clone(), smallest_group=1),
}
