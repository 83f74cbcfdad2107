r"""The advantages of episodes with several turns: one for the whole episode, or one for each turn."""

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.advantages.formulas import group_advantages, return_to_go, rloo_advantages
from grpo_lab.base.checks import check_all_finite, check_choice, check_dtype, check_positive, check_shapes


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
    state_advantages = centred / (std + eps if scale == "group" else 1)  # P GK (11.10)
    episode_advantages = group_advantages(torch.where(turn_mask, turn_rewards, 0).sum(-1), scale=scale, eps=eps)
    advantages = turn_mask * (
        episode_advantages[..., None] + omega * state_advantages.view(turn_mask.shape)
    )  # P G K (11.11)
    return advantages


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
    state, is_turn = rearrange(states, "P G K -> P (G K)"), rearrange(turn_mask, "P G K -> P (G K)")
    same_state = (state[:, :, None] == state[:, None, :]) & is_turn[:, :, None] & is_turn[:, None, :]
    episode = torch.arange(G, device=turn_mask.device).repeat_interleave(K)
    return rearrange(returns, "P G K -> P (G K)"), same_state, episode[:, None] != episode
