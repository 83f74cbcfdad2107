"""What one rollout leaves behind for the updates: a record that can be cut into rows, and how its rewards compare."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.advantages import best_of_group, group_advantages, rloo_advantages
from grpo_lab.config import GRPOConfig
from grpo_lab.rollout import Rollout

EPS = 1e-4  # keeps the division by the standard deviation finite; TRL's


@dataclass(frozen=True)
class Experience:
    """B rows of T tokens. `experience[rows]` is the experience of some rows; their prompts stay shared."""

    rollout: Rollout
    rewards: Float[Tensor, " B"]  # NaN where no reward function applied
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"]  # one a completion; or one a token, put in by the caller
    mask: Bool[Tensor, "B T"]  # tokens that enter the loss
    active: Bool[Tensor, " B"]  # rows that carry gradient
    old_logp: Float[Tensor, "B T"] | None = None  # None: the policy has not moved since it sampled
    ref_logp: Float[Tensor, "B T"] | None = None
    rewards_per_func: Float[Tensor, "B F"] | None = None  # NaN where one did not apply

    def __len__(self) -> int:
        return len(self.mask)

    def __getitem__(self, rows: slice | Int[Tensor, " R"] | Bool[Tensor, " B"]) -> "Experience":
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return Experience(**{name: None if value is None else value[rows] for name, value in values.items()})

    def split(self, size: int) -> "Iterator[Experience]":
        """Cut into parts of `size` rows, in their order; the last one may be smaller."""
        return (self[start : start + size] for start in range(0, len(self), size))


def make_experience(
    rollout: Rollout, rewards: Float[Tensor, " B"], config: GRPOConfig, per_func: Float[Tensor, "B F"] | None = None
) -> Experience:
    """Compare the rewards, and find out which tokens and rows count."""
    device = rollout.mask.device
    rewards, per_func = rewards.to(device), None if per_func is None else per_func.to(device)
    advantages = compute_advantages(rewards, config)
    mask = rollout.mask & ~rollout.truncated[:, None] if config.mask_truncated_completions else rollout.mask
    active = mask.any(-1) & ((advantages != 0) | config.needs_every_row)
    return Experience(rollout, rewards, advantages, mask, active, rewards_per_func=per_func)


def compute_advantages(rewards: Float[Tensor, " B"], config: GRPOConfig) -> Float[Tensor, " B"]:
    """Apply the configured comparison (as in `group_advantages`, with n - 1); a prompt's completions stand together.

    A completion to which no reward applies (NaN) is left out of the comparison, and its own advantage is zero. If only
    one of a prompt's completions is left, there is nothing to compare it with, and its advantage is zero, too (with the
    advantage "none" it keeps its reward). The scale "batch" is the spread of all rewards that apply; eps is 1e-4.
    Rewards that are not NaN are finite, and so are their squares in the rewards' precision.
    """
    by_group = rewards.view(-1, config.num_generations)
    if not rewards.isnan().any():
        return _compare(by_group, config).flatten()
    if config.advantage == "group" and config.scale_rewards == "batch":
        centred, scored = _compare_scored(by_group, replace(config, scale_rewards="none")), rewards[~rewards.isnan()]
        return (centred / (scored.std() + EPS) if len(scored) > 1 else centred).flatten()
    return _compare_scored(by_group, config).flatten()


def _compare(by_group: Float[Tensor, "P G"], config: GRPOConfig) -> Float[Tensor, "P G"]:
    if config.advantage == "group":
        return group_advantages(by_group, scale=config.scale_rewards, eps=EPS)
    others = {"rloo": rloo_advantages, "best_of_group": best_of_group, "none": Tensor.clone}
    return others[config.advantage](by_group)


def _compare_scored(by_group: Float[Tensor, "P G"], config: GRPOConfig) -> Float[Tensor, "P G"]:
    advantages = torch.zeros_like(by_group)
    for group, answer in zip(by_group, advantages, strict=True):
        scored = ~group.isnan()
        if scored.sum() > 1 or (scored.any() and config.advantage == "none"):
            answer[scored] = _compare(group[scored][None], config)[0]
    return advantages
