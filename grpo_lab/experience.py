"""What one rollout leaves behind for the updates: the record, and the log-probabilities of its rows."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.advantages import best_of_group, group_advantages, rloo_advantages
from grpo_lab.config import GRPOConfig
from grpo_lab.rollout import Rollout, score_logprobs


@dataclass
class Experience:
    """B rows, T tokens. Row b answers prompt b // G of the rollout."""

    rollout: Rollout
    rewards: Float[Tensor, " B"]
    advantages: Float[Tensor, " B"]
    mask: Bool[Tensor, "B T"]  # tokens that enter the loss
    active: Bool[Tensor, " B"]  # rows that carry gradient
    old_logp: Float[Tensor, "B T"] | None = None  # None: the policy has not moved since it sampled
    ref_logp: Float[Tensor, "B T"] | None = None

    def __len__(self) -> int:
        return len(self.mask)


def make_experience(rollout: Rollout, rewards: Float[Tensor, " B"], config: GRPOConfig) -> Experience:
    """Compare the rewards, and find out which tokens and rows count."""
    rewards = rewards.to(rollout.mask.device)
    advantages = compute_advantages(rewards, config)
    mask = rollout.mask & ~rollout.truncated[:, None] if config.mask_truncated_completions else rollout.mask
    active = mask.any(-1) & ((advantages != 0) | config.needs_every_row)
    return Experience(rollout, rewards, advantages, mask, active)


def compute_advantages(rewards: Float[Tensor, " B"], config: GRPOConfig) -> Float[Tensor, " B"]:
    """Apply the configured comparison; the completions of a prompt stand together."""
    by_group = rewards.view(-1, config.num_generations)
    if config.advantage == "rloo":
        return rloo_advantages(by_group).flatten()
    if config.advantage == "best_of_group":
        return best_of_group(by_group).flatten()
    if config.advantage == "none":
        return rewards
    return group_advantages(by_group, scale=config.scale_rewards).flatten()


def score_rows(
    model, experience: Experience, rows: Int[Tensor, " R"], config: GRPOConfig
) -> tuple[Float[Tensor, "R T"], Float[Tensor, "R T"]]:
    """Log-probability and entropy of some rows under the model; rows that carry no gradient are left at 0, uncomputed.

    The results stay on the experience's device, whichever device the model is on.
    """
    rollout, home = experience.rollout, experience.mask.device
    where = experience.active[rows].nonzero()[:, 0]
    logp = torch.zeros(experience.mask[rows].shape, device=home)
    if len(where) == 0:
        return logp, logp.clone()
    chosen = rows[where]
    length = int(rollout.mask[chosen].sum(-1).max())
    scored = score_logprobs(
        model,
        *(
            tensor.to(model.device)
            for tensor in (
                rollout.prompt_ids,
                rollout.prompt_mask,
                rollout.completion_ids[chosen, :length],
                rollout.mask[chosen, :length],
                chosen // rollout.num_generations,
            )
        ),
        temperature=config.temperature,
        share_prompts=not config.gradient_checkpointing,
    )
    place = (where[:, None], torch.arange(length, device=home))
    return tuple(torch.zeros_like(logp).index_put(place, values.to(home, logp.dtype)) for values in scored)


@torch.no_grad()
def score_all(model, experience: Experience, config: GRPOConfig) -> Float[Tensor, "B T"]:
    """Log-probabilities of the whole experience without gradient, as many rows at once as an update takes."""
    rows = torch.arange(len(experience), device=experience.mask.device)
    parts = rows.split(config.per_device_train_batch_size)
    return torch.cat([score_rows(model, experience, part, config)[0] for part in parts])
