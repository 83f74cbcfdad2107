"""The numbers that a step reports, under TRL's names where it has them: of rollout, rewards, updates."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from grpo_lab.rollout import Rollout
from grpo_lab.trainer.experience import Experience

WORST = "sampling/logp_difference_max"  # over all tokens; every other metric of an update is a sum or a mean


def rollout_metrics(rollout: Rollout, seconds: float) -> dict:
    """Lengths, entropy and speed of a rollout that took so many seconds."""
    lengths = rollout.mask.sum(-1).float()
    ended = lengths[~rollout.truncated]
    prompt_tokens = rollout.prompt_mask.sum(-1)[rollout.prompt_of_row].sum()
    return {
        "entropy": (rollout.entropy.sum() / rollout.mask.sum()).item(),
        "completions/mean_length": lengths.mean().item(),
        "completions/min_length": lengths.min().item(),
        "completions/max_length": lengths.max().item(),
        "completions/clipped_ratio": rollout.truncated.float().mean().item(),
        "completions/mean_terminated_length": ended.mean().item() if len(ended) else 0.0,
        "num_tokens": int(lengths.sum() + prompt_tokens),
        "tokens_per_second": lengths.sum().item() / seconds,
    }


def reward_metrics(experience: Experience, per_func: Float[Tensor, "B F"], names: list[str]) -> dict:
    """The rewards together and of each function, and how many groups and rows have nothing to say."""
    groups = experience.rewards.view(len(experience.rollout.prompt_ids), -1)
    highest, lowest = groups.nan_to_num(nan=-torch.inf).amax(-1), groups.nan_to_num(nan=torch.inf).amin(-1)
    mean, std = mean_and_std(experience.rewards)
    metrics = {
        "reward": mean,
        "reward_std": std,
        "frac_reward_zero_std": (highest <= lowest).float().mean().item(),
        "rows_without_gradient": (~experience.active).float().mean().item(),
    }
    for name, values in zip(names, per_func.unbind(1), strict=True):
        metrics[f"rewards/{name}/mean"], metrics[f"rewards/{name}/std"] = mean_and_std(values)
    return metrics


class UpdateMetrics:
    """Adds up what the parts of one update report. Means over tokens count by the part's share of them."""

    def __init__(self, num_items: Int[Tensor, ""]):
        self.num_items = num_items.clamp(min=1)
        self.total: dict[str, float] = {"loss": 0.0, WORST: 0.0}

    def add(self, part: Experience, logp: Float[Tensor, "R T"], loss: Float[Tensor, ""], means: dict) -> None:
        share = (part.mask.sum() / self.num_items).item()
        for name, value in means.items():
            self.total[name] = self.total.get(name, 0.0) + value * share
        self.total["loss"] += loss.item()
        scored = part.mask & part.active[:, None]
        difference = (logp.detach() - part.rollout.logp)[scored].abs()
        self.total[WORST] = max(self.total[WORST], difference.max().item() if len(difference) else 0.0)


def mean_of_updates(updates: list[dict]) -> dict:
    """The mean of each metric. Sampler and scorer are compared in the first update: after it, the policy has moved."""
    mean = {name: sum(metrics[name] for metrics in updates) / len(updates) for name in updates[0]}
    return mean | {WORST: updates[0][WORST]}


def mean_and_std(values: Tensor) -> tuple[float | None, float]:
    """Of the values that are not NaN; a mean of None says that there are none."""
    given = values[~values.isnan()]
    return given.mean().item() if len(given) else None, given.std().item() if len(given) > 1 else 0.0
