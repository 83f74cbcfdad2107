"""What one rollout leaves behind for the updates: the record, and the log-probabilities of its rows."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab import precision
from grpo_lab.advantages import best_of_group, group_advantages, rloo_advantages
from grpo_lab.config import GRPOConfig
from grpo_lab.rollout import Rollout, score_logprobs
from grpo_lab.trainer.clock import now

EPS = 1e-4  # keeps the division by the standard deviation finite; TRL's


@dataclass
class Experience:
    """B rows, T tokens. Row b answers prompt b // G of the rollout."""

    rollout: Rollout
    rewards: Float[Tensor, " B"]  # NaN where no reward function applied
    advantages: Float[Tensor, " B"]
    mask: Bool[Tensor, "B T"]  # tokens that enter the loss
    active: Bool[Tensor, " B"]  # rows that carry gradient
    old_logp: Float[Tensor, "B T"] | None = None  # None: the policy has not moved since it sampled
    ref_logp: Float[Tensor, "B T"] | None = None
    scoring_seconds: float = 0.0  # spent on log-probabilities so far, backward passes not counted

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
    """Apply the configured comparison; the completions of a prompt stand together.

    A completion to which no reward applies (NaN) is left out of the comparison, and its own advantage is zero.
    """
    by_group = rewards.view(-1, config.num_generations)
    if not rewards.isnan().any():
        return _compare(by_group, config).flatten()
    if config.advantage == "group" and config.scale_rewards == "batch":
        centred = _compare_scored(by_group, replace(config, scale_rewards="none"))
        return centred.flatten() / (rewards[~rewards.isnan()].std() + EPS)
    return _compare_scored(by_group, config).flatten()


def _compare(by_group: Float[Tensor, "P G"], config: GRPOConfig) -> Float[Tensor, "P G"]:
    if config.advantage == "rloo":
        return rloo_advantages(by_group)
    if config.advantage == "best_of_group":
        return best_of_group(by_group)
    if config.advantage == "none":
        return by_group
    return group_advantages(by_group, scale=config.scale_rewards, eps=EPS)


def _compare_scored(by_group: Float[Tensor, "P G"], config: GRPOConfig) -> Float[Tensor, "P G"]:
    advantages = torch.zeros_like(by_group)
    for group, answer in zip(by_group, advantages, strict=True):
        scored = ~group.isnan()
        if scored.sum() > 1 or (scored.any() and config.advantage == "none"):
            answer[scored] = _compare(group[scored][None], config)[0]
    return advantages


def score_rows(
    model, experience: Experience, rows: Int[Tensor, " R"], config: GRPOConfig
) -> tuple[Float[Tensor, "R T"], Float[Tensor, "R T"] | None]:
    """Log-probability and entropy of some rows under the model; rows that carry no gradient are left at 0, uncomputed.

    The entropy is None where no bonus asks for it (the metrics take the sampler's). The results stay on the device of
    the experience, whichever device the model is on.
    """
    started = now(model.device)
    logp = torch.zeros(experience.mask[rows].shape, device=experience.mask.device)
    entropy = torch.zeros_like(logp) if config.entropy_coef != 0 else None
    where = experience.active[rows].nonzero()[:, 0]
    for part in similar_lengths(where, experience.rollout.mask[rows[where]].sum(-1)):
        part_logp, part_entropy = _score_together(model, experience.rollout, rows[part], config)
        logp = _put(logp, part, part_logp)
        if entropy is not None:
            entropy = _put(entropy, part, part_entropy)
    experience.scoring_seconds += now(model.device) - started
    return logp, entropy


def similar_lengths(rows: Int[Tensor, " R"], lengths: Int[Tensor, " R"]) -> list[Int[Tensor, " _"]]:
    """Cut the rows into groups within a factor of two in length, if together more than a third of them were padding."""
    if len(rows) == 0:
        return []
    if 3 * lengths.sum() >= 2 * len(rows) * lengths.max():
        return [rows]
    doublings = lengths.log2().ceil()
    return [rows[doublings == number] for number in doublings.unique()]


def by_length(experience: Experience, rows: Int[Tensor, " R"]) -> Int[Tensor, " R"]:
    """Longest completion first, rows without gradient last: cut into micro-batches, alike rows then share one.

    That saves padding. And what does not fit into memory shows at once, not after an hour.
    """
    lengths = experience.rollout.mask[rows].sum(-1) * experience.active[rows]
    return rows[lengths.argsort(descending=True, stable=True)]


def _score_together(model, rollout: Rollout, rows: Int[Tensor, " R"], config: GRPOConfig):
    length = int(rollout.mask[rows].sum(-1).max())
    prompt_of_row = rows // rollout.num_generations
    begin = int(rollout.prompt_mask[prompt_of_row].any(0).int().argmax())  # before it, all of these are padding
    inputs = (
        rollout.prompt_ids[:, begin:],
        rollout.prompt_mask[:, begin:],
        rollout.completion_ids[rows, :length],
        rollout.mask[rows, :length],
        prompt_of_row,
    )
    with autocast(model, config):
        return score_logprobs(
            model,
            *(tensor.to(model.device) for tensor in inputs),
            temperature=config.temperature,
            share_prompts=not config.gradient_checkpointing and len(prompt_of_row.unique()) < len(rows),
            with_entropy=config.entropy_coef != 0,
        )


def _put(into: Float[Tensor, "R T"], rows: Int[Tensor, " S"], values: Float[Tensor, "S t"]) -> Float[Tensor, "R T"]:
    place = (rows[:, None], torch.arange(values.shape[1], device=into.device))
    return into.to(values.dtype).index_put(place, values.to(into.device))


@torch.no_grad()
def score_all(model, experience: Experience, config: GRPOConfig) -> Float[Tensor, "B T"]:
    """Log-probabilities of the whole experience without gradient, as many rows at once as an update takes."""
    rows = by_length(experience, torch.arange(len(experience), device=experience.mask.device))
    parts = rows.split(config.per_device_train_batch_size)
    return torch.cat([score_rows(model, experience, part, config)[0] for part in parts])[rows.argsort()]


def autocast(model, config: GRPOConfig) -> torch.autocast:
    """Half-precision arithmetic on float32 weights, if that is the mode."""
    return precision.autocast(model.device, precision.precision_of(model, config))
