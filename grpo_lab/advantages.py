r"""Advantages: the reward of a completion compared with the other completions of its prompt.

Axes: P prompts, G completions of a prompt, T tokens, K turns.

This module differs from the usual code in one step, on purpose. It first subtracts one reward of the group from all
rewards of the group, Eq. (2.8). On paper this changes nothing, since it cancels. In floating point it makes equal
rewards give advantages of *exactly* zero. `r - r.mean()` would leave a rounding residue, which the division by a
near-zero standard deviation makes large.

The standard deviation of the sample (ddof=1) or of the population (ddof=0) is a convention. TRL and verl use ddof=1;
open-instruct uses ddof=0 when it divides at all.

Invalid arguments raise a ValueError that names the argument.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from einops import rearrange, reduce
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.base.checks import (
    InputError,
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
    r = rewards - rewards[:, :1]
    advantages = r - (r.sum(-1, keepdim=True) - r) / (r.shape[1] - 1)  # P G (2.4)
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


def trajectory_advantages(
    turn_rewards: Float[Tensor, "P G K"], turn_mask: Bool[Tensor, "P G K"]
) -> Float[Tensor, "P G K"]:
    r"""Give all turns of an episode the same advantage: its whole reward, compared with the other episodes.

    R_{p,i} = \sum_k n_{p,i,k} \, r_{p,i,k} \tag{11.7}
    A_{p,i,k} = n_{p,i,k} \Big( R_{p,i} - \frac{1}{G-1} \sum_{j \neq i} R_{p,j} \Big) \tag{11.5}

    Args:
        turn_rewards: r, the reward of each turn, finite where the mask is True; values elsewhere have no effect. G is
            at least 2.
        turn_mask: n, True where the episode has a turn.

    Returns:
        The advantage of each turn; zero where there is no turn. The second factor is `rloo_advantages` of R, so the
        estimate is unbiased.
    """
    _check_turns(turn_rewards, turn_mask)
    rewards = torch.where(turn_mask, turn_rewards, 0).sum(-1)  # P G (11.7)
    advantages = turn_mask * rloo_advantages(rewards)[..., None]  # P G K (11.5)
    return advantages


def turn_advantages(
    turn_rewards: Float[Tensor, "P G K"],
    turn_mask: Bool[Tensor, "P G K"],
    states: Int[Tensor, "P G K"] | None = None,
    gamma: float = 1.0,
) -> Float[Tensor, "P G K"]:
    r"""Compare the reward to go of each turn with that of other episodes' turns in the same state.

    S_{p,i,k} = \{ (j, l) : j \neq i, \; n_{p,j,l} = 1, \; s_{p,j,l} = s_{p,i,k} \} \tag{11.8}
    A_{p,i,k} = n_{p,i,k} \Big( g_{p,i,k} - \frac{1}{|S_{p,i,k}|} \sum_{(j,l) \in S_{p,i,k}} g_{p,j,l} \Big) \tag{11.6}

    g is the reward to go over turns, Eq. (2.20). The baseline leaves out all turns of the same episode, so the estimate
    is unbiased. If S is empty, the baseline is zero.

    Args:
        turn_rewards: r, the reward of each turn, finite where the mask is True; values elsewhere have no effect, NaN
            included.
        turn_mask: n, True where the episode has a turn.
        states: s, an integer for the state in which each turn begins. It depends only on the episode before the turn.
            None: the index k of the turn.
        gamma: Discount factor per turn, from 0 to 1.

    Returns:
        The advantage of each turn. It is exactly zero where S is not empty and all its rewards to go equal g, since the
        mean of the differences g - g' is computed; a difference of means would leave a rounding residue.
    """
    _check_turns(turn_rewards, turn_mask, states)
    returns, same_state, other_episode = _pairs_of_turns(turn_rewards, turn_mask, states, gamma)
    in_baseline = same_state & other_episode  # P GK GK (11.8)
    count = in_baseline.sum(-1)
    differences = torch.where(in_baseline, returns[..., :, None] - returns[..., None, :], 0).sum(-1)
    advantages = torch.where(count > 0, differences / count.clamp(min=1), returns)  # P GK (11.6)
    return turn_mask * advantages.view(turn_mask.shape)


def gigpo_advantages(
    turn_rewards: Float[Tensor, "P G K"],
    turn_mask: Bool[Tensor, "P G K"],
    states: Int[Tensor, "P G K"] | None = None,
    gamma: float = 1.0,
    omega: float = 1.0,
    scale: str = "none",
    eps: float = 1e-4,
) -> Float[Tensor, "P G K"]:
    r"""Compare whole episodes, and within them the turns that begin in the same state (group in group).

    d_{p,i,k} = g_{p,i,k} - \underset{n_{p,j,l} = 1, \; s_{p,j,l} = s_{p,i,k}}{\mathrm{mean}} \, g_{p,j,l} \tag{11.9}
    A^{\mathrm{state}}_{p,i,k} = \frac{d_{p,i,k}}{F_{p,i,k}} \tag{11.10}
    A_{p,i,k} = n_{p,i,k} \big( A^{\mathrm{episode}}_{p,i} + \omega \, A^{\mathrm{state}}_{p,i,k} \big) \tag{11.11}

    A^episode is `group_advantages` of the total rewards R of Eq. (11.7), with the same scale. The second term is zero
    for a turn that is the only one in its state.

    Args:
        turn_rewards: r, the reward of each turn, as in `turn_advantages`.
        turn_mask: n, True where the episode has a turn.
        states: s, an integer for the state in which each turn begins, as in `turn_advantages`.
        gamma: Discount factor per turn, from 0 to 1.
        omega: Weight of the second term.
        scale: With "none", F is 1. With "group", F is the sample standard deviation of g over the turns in the same
            state, plus eps.
        eps: Number > 0 that keeps the quotients finite, as in `group_advantages`.

    Source: Feng et al. (2025), "Group-in-Group Policy Optimization", section 4; there, too, the mean includes
    the turn itself.
    """
    check_choice("scale", scale, ("none", "group"))
    check_positive("eps", eps)
    _check_turns(turn_rewards, turn_mask, states)
    returns, same_state, _ = _pairs_of_turns(turn_rewards, turn_mask, states, gamma)
    count = same_state.sum(-1).clamp(min=1)
    differences = torch.where(same_state, returns[..., :, None] - returns[..., None, :], 0)  # g - g', exact where equal
    centred = differences.sum(-1) / count  # P GK (11.9)
    squares = torch.where(same_state, centred[..., None, :].square(), 0).sum(-1)
    std = (squares / (count - 1).clamp(min=1)).sqrt()
    by_state = centred / (std + eps if scale == "group" else 1)  # P GK (11.10)
    by_episode = group_advantages(torch.where(turn_mask, turn_rewards, 0).sum(-1), scale=scale, eps=eps)
    advantages = turn_mask * (by_episode[..., None] + omega * by_state.view(turn_mask.shape))  # P G K (11.11)
    return advantages


def advantages_where_rewarded(
    compute: Callable[..., Tensor],
    has_reward: Bool[Tensor, "P G"],
    rewards: Float[Tensor, "P G ..."],
    *other_inputs: Bool[Tensor, "P G ..."] | Int[Tensor, "P G ..."] | None,
) -> Float[Tensor, "P G ..."]:
    """Compute the advantages of each group from its completions with a reward; the others get an advantage of zero.

    A group with fewer than two rewards has no baseline, and all its advantages are zero.

    Args:
        compute: Function of the rewards and the other inputs that returns advantages of the same shape as the rewards,
            such as `rloo_advantages`.
        has_reward: False for a completion to which no reward applies (its reward is NaN).
        rewards: The rewards; values where `has_reward` is False have no effect, NaN included.
        other_inputs: Further tensor arguments of `compute`, such as a mask of turns; None is passed as None.
    """
    if has_reward.all():
        return compute(rewards, *other_inputs)
    advantages = torch.zeros_like(rewards)
    for p, row_has_reward in enumerate(has_reward):
        if row_has_reward.sum() > 1:
            inputs = (
                None if values is None else values[p, row_has_reward][None] for values in (rewards, *other_inputs)
            )
            advantages[p, row_has_reward] = compute(*inputs)[0]
    return advantages


def group_advantages_where_rewarded(
    rewards: Float[Tensor, "P G"], has_reward: Bool[Tensor, "P G"], scale: str = "group", eps: float = 1e-4
) -> Float[Tensor, "P G"]:
    """Compute `group_advantages(rewards, scale)` from the completions with a reward; the others get zero.

    For "batch" the standard deviation is that of all rewards that apply. If there is only one, all advantages are zero.
    """
    if scale != "batch" or has_reward.all():
        return advantages_where_rewarded(partial(group_advantages, scale=scale, eps=eps), has_reward, rewards)
    centred = advantages_where_rewarded(partial(group_advantages, scale="none"), has_reward, rewards)
    existing = rewards[has_reward]
    # As in `group_advantages`, the deviation is that of the differences from the first reward.
    std = (existing - existing[0]).std() if len(existing) > 1 else 0
    return centred / (std + eps)


def _check_turns(turn_rewards: Tensor, turn_mask: Tensor, states: Tensor | None = None) -> None:
    check_shapes(turn_rewards=(turn_rewards, "P G>1 K"), turn_mask=(turn_mask, "P G K"), states=(states, "P G K"))
    check_dtype("turn_mask", turn_mask, "bool")
    if states is not None:
        check_dtype("states", states, "int")
    check_all_finite("turn_rewards", turn_rewards[turn_mask])


def _pairs_of_turns(
    turn_rewards: Tensor, turn_mask: Tensor, states: Tensor | None, gamma: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return rewards to go (P, G*K), and masks of the pairs of turns in the same state and of different episodes."""
    G, K = turn_mask.shape[1:]
    returns = return_to_go(torch.where(turn_mask, turn_rewards, 0), gamma)
    if states is None:
        states = torch.arange(K, device=turn_mask.device).expand_as(turn_mask)
    state, exists = rearrange(states, "P G K -> P (G K)"), rearrange(turn_mask, "P G K -> P (G K)")
    same_state = (state[:, :, None] == state[:, None, :]) & exists[:, :, None] & exists[:, None, :]
    episode = torch.arange(G, device=turn_mask.device).repeat_interleave(K)
    return rearrange(returns, "P G K -> P (G K)"), same_state, episode[:, None] != episode


class RewardBatch(NamedTuple):
    """The rewards from which the advantages of a step are computed: P prompts with G completions each.

    The rewards are (P, G), or (P, G, K) for an entry of `ADVANTAGES` with `per_turn`.
    """

    rewards: Float[Tensor, "P G"] | Float[Tensor, "P G K"]  # finite where a reward applies
    has_reward: Bool[Tensor, "P G"]  # False for a completion to which no reward applies
    turn_mask: Bool[Tensor, "P G K"] | None = None  # True where the episode has a turn
    states: Int[Tensor, "P G K"] | None = None  # an integer for the state in which each turn begins


@dataclass(frozen=True)
class Advantage:
    """An entry of `ADVANTAGES`: how a run with `advantage = NAME` computes advantages, and what that needs.

    Args:
        compute: Function of a `RewardBatch` and the settings of the run, a `GRPOConfig`, that returns advantages of the
            shape of the rewards. A completion to which no reward applies gets an advantage of zero.
        reads: Names of the settings that `compute` reads. A run with this entry refuses any other such setting.
        smallest_group: Smallest number of completions per prompt.
        per_turn: Whether each turn of an episode has an advantage of its own; the run then needs an environment.
        reads_states: Whether turns in the same state are compared; the environment must then have `get_state`.
        check: Function that raises InputError for settings of the run that `compute` does not support.
    """

    compute: Callable[[RewardBatch, Any], Tensor]
    reads: tuple[str, ...] = ()
    smallest_group: int = 2
    per_turn: bool = False
    reads_states: bool = False
    check: Callable[[Any], None] = lambda config: None


# The following functions pass tensors of the batch and settings to the formulas above.
def batch_group_advantages(batch: RewardBatch, config: Any) -> Tensor:
    return group_advantages_where_rewarded(batch.rewards, batch.has_reward, config.scale_rewards)


def batch_rloo_advantages(batch: RewardBatch, config: Any) -> Tensor:
    return advantages_where_rewarded(rloo_advantages, batch.has_reward, batch.rewards)


def batch_best_of_group(batch: RewardBatch, config: Any) -> Tensor:
    return advantages_where_rewarded(best_of_group, batch.has_reward, batch.rewards)


def batch_rewards(batch: RewardBatch, config: Any) -> Tensor:
    return torch.where(batch.has_reward, batch.rewards, 0)


def batch_turn_advantages(batch: RewardBatch, config: Any) -> Tensor:
    return advantages_where_rewarded(turn_advantages, batch.has_reward, batch.rewards, batch.turn_mask)


def batch_state_advantages(batch: RewardBatch, config: Any) -> Tensor:
    return advantages_where_rewarded(turn_advantages, batch.has_reward, batch.rewards, batch.turn_mask, batch.states)


def batch_gigpo_advantages(batch: RewardBatch, config: Any) -> Tensor:
    compute = partial(gigpo_advantages, scale=config.scale_rewards)
    return advantages_where_rewarded(compute, batch.has_reward, batch.rewards, batch.turn_mask, batch.states)


def check_gigpo(config: Any) -> None:
    if config.scale_rewards == "batch":
        raise InputError("scale_rewards", "batch", "expected 'group' or 'none' with advantage = 'gigpo'")


ADVANTAGES = {
    "group": Advantage(batch_group_advantages, reads=("scale_rewards",)),
    "rloo": Advantage(batch_rloo_advantages),
    "best_of_group": Advantage(batch_best_of_group),
    "none": Advantage(batch_rewards, smallest_group=1),
    "turn": Advantage(batch_turn_advantages, per_turn=True),
    "state": Advantage(batch_state_advantages, per_turn=True, reads_states=True),
    "gigpo": Advantage(
        batch_gigpo_advantages, reads=("scale_rewards",), per_turn=True, reads_states=True, check=check_gigpo
    ),
}
