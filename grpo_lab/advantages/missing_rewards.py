"""Advantages where some completions have no reward: computed from the completions of the group that have one."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.advantages.formulas import group_advantages


def advantages_where_rewarded(
    compute: Callable[..., Tensor],
    has_reward: Bool[Tensor, "P G"],
    rewards: Float[Tensor, "P G ..."],
    *other_inputs: Bool[Tensor, "P G ..."] | Int[Tensor, "P G ..."] | None,
) -> Float[Tensor, "P G ..."]:
    """Compute the advantages of each group from its completions with a reward; the others get an advantage of zero.

    A group with fewer than two rewards has no baseline, and all its advantages are zero; a group of one completion (G =
    1) has none anyway, and is computed if it has a reward.

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
    for p, group_has_reward in enumerate(has_reward):
        if group_has_reward.sum() >= min(2, len(group_has_reward)):
            inputs = (
                None if values is None else values[p, group_has_reward][None] for values in (rewards, *other_inputs)
            )
            advantages[p, group_has_reward] = compute(*inputs)[0]
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
    known_rewards = rewards[has_reward]
    # As in `group_advantages`, the deviation is that of the differences from the first reward.
    std = (known_rewards - known_rewards[0]).std() if len(known_rewards) > 1 else 0
    return centred / (std + eps)
