"""The loop: sample, reward, compare, score, step. Read `train` first; each line of it is a station of notebook 07.

Where this file departs from the usual trainers, on purpose: one process, no callbacks beyond one function, no hidden
defaults. A row whose advantage is zero carries no gradient when there is neither a KL term nor an entropy bonus, so
it is not computed (its place in every denominator stays). Each step draws from a random stream of its own, seeded by
the run's seed and the step, which is why a resumed run continues bit for bit on the CPU.
"""

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from grpo_lab.config import GRPOConfig
from grpo_lab.objective import aggregate, part_loss
from grpo_lab.rewards import score_completions
from grpo_lab.rollout import Rollout, sample_completions
from grpo_lab.tasks import Rows
from grpo_lab.trainer.clock import now
from grpo_lab.trainer.experience import Experience, autocast, by_length, make_experience, score_all, score_rows
from grpo_lab.trainer.optim import GuardedOptimizer
from grpo_lab.trainer.run import Run

__all__ = ["GRPOConfig", "accumulate_gradient", "collect", "train", "update"]


def train(
    model,
    tokenizer,
    dataset: Rows,
    reward_funcs: Callable | list[Callable],
    config: GRPOConfig,
    callback: Callable[[int, dict], None] | None = None,
) -> list[dict]:
    """Train the model in place with GRPO.

    Args:
        model, tokenizer: as `load_policy` returns them; all parameters that require a gradient are trained.
        dataset: rows with a "prompt" (string or message list), as a list of dicts or a `datasets.Dataset`; their other
            columns go to the reward functions.
        reward_funcs: one or several, with TRL's signature.
        config: the settings.
        callback: called with the step and its metrics after every step, for example a `plots.LivePlot`.

    Returns:
        One dict of metrics a step, under TRL's names; the same as in metrics.jsonl.

    Raises:
        ValueError: for a dataset or settings that do not fit.
        FileExistsError: if the output folder holds a run already and `resume_from_checkpoint` is off.
        RuntimeError: when `max_nonfinite_steps` updates in a row had a loss or gradient that was not finite.
    """
    with Run(model, tokenizer, dataset, config) as run:
        for step in run.steps():
            rows = run.rows_of_step(step)
            experience, metrics = collect(model, tokenizer, rows, reward_funcs, config)
            if config.beta > 0:
                experience.ref_logp = score_all(run.reference_model(step), experience, config)
            metrics |= update(model, run.optimizer, experience, config, run.learning_rate(step))
            run.record(step, metrics, callback)
    return run.history


def collect(
    model, tokenizer, rows: list[dict], reward_funcs: Callable | list[Callable], config: GRPOConfig
) -> tuple[Experience, dict]:
    """Sample G completions for each row, reward them, and compare each with the others of its group."""
    started = now(model.device)
    with autocast(model, config):
        rollout = sample_completions(
            model,
            tokenizer,
            [row["prompt"] for row in rows],
            config.num_generations,
            config.max_completion_length,
            **config.sampling_arguments(),
        )
    sampled = now(model.device)
    repeated = [row for row in rows for _ in range(config.num_generations)]
    rewards, per_func, names = score_completions(
        reward_funcs,
        [row["prompt"] for row in repeated],
        _as_completions(repeated, rollout.texts),
        [ids[keep].tolist() for ids, keep in zip(rollout.completion_ids.cpu(), rollout.mask.cpu(), strict=True)],
        {name: [row[name] for row in repeated] for name in rows[0] if name != "prompt"},
        config.reward_weights,
    )
    metrics = {"time/rollout": sampled - started, "time/reward": now(model.device) - sampled}
    experience = make_experience(rollout, rewards, config)
    metrics |= _rollout_metrics(rollout, sampled - started) | _reward_metrics(experience, per_func, names)
    return experience, metrics


def update(model, optimizer: GuardedOptimizer, experience: Experience, config: GRPOConfig, lr: float) -> dict:
    """Make all updates of one step: `num_iterations` passes over the experience, `update_batch_size` rows at a time."""
    started, scored_before = now(model.device), experience.scoring_seconds
    rows = torch.arange(len(experience), device=experience.mask.device)
    if config.updates_per_step > 1:
        experience.old_logp = score_all(model, experience, config)
    per_update = []
    for _ in range(config.num_iterations):
        if len(rows) > config.update_batch_size:
            rows = rows[torch.randperm(len(rows)).to(rows.device)]
        for batch in rows.split(config.update_batch_size):
            metrics = accumulate_gradient(model, optimizer, experience, batch, config, first=not per_update)
            metrics["grad_norm"] = optimizer.step(lr, metrics["loss"])
            per_update.append(metrics)
    mean = {name: sum(m[name] for m in per_update) / len(per_update) for name in per_update[-1]}
    mean["sampling/logp_difference_max"] = per_update[0]["sampling/logp_difference_max"]
    updating = now(model.device) - started - (experience.scoring_seconds - scored_before)
    mean |= {"time/score": experience.scoring_seconds, "time/update": updating}
    return mean | {"learning_rate": lr, "nonfinite_steps": optimizer.nonfinite_total}


def accumulate_gradient(
    model,
    optimizer: GuardedOptimizer,
    experience: Experience,
    batch: Int[Tensor, " R"],
    config: GRPOConfig,
    first: bool = True,
) -> dict:
    """Add up the gradient of one update, micro-batch by micro-batch. How it is cut changes nothing (except for "bnpo").

    `first` says that the policy has not moved since it sampled.
    """
    num_items = experience.mask[batch].sum()
    total: dict[str, float] = {}
    if config.loss_type != "bnpo":  # whose mean depends on the rows that share a micro-batch
        batch = by_length(experience, batch)
    for part in batch.split(config.per_device_train_batch_size):
        mask = experience.mask[part]
        logp, entropy = score_rows(model, experience, part, config)
        loss, metrics = part_loss(
            logp,
            experience.advantages[part],
            mask,
            len(batch),
            num_items,
            old_logp=None if first or experience.old_logp is None else experience.old_logp[part],
            ref_logp=None if experience.ref_logp is None else experience.ref_logp[part],
            **config.loss_arguments(),
        )
        if entropy is not None:
            loss = loss - config.entropy_coef * aggregate(entropy, mask, "dapo", num_items=num_items)
        if loss.requires_grad:
            optimizer.backward(loss)
        token_share = (mask.sum() / num_items.clamp(min=1)).item()
        for name, value in metrics.items():
            total[name] = total.get(name, 0.0) + value * token_share
        total["loss"] = total.get("loss", 0.0) + loss.item()
        scored = mask & experience.active[part, None]
        difference = (logp.detach() - experience.rollout.logp[part])[scored].abs()
        worst = difference.max().item() if len(difference) else 0.0
        total["sampling/logp_difference_max"] = max(total.get("sampling/logp_difference_max", 0.0), worst)
    return total


def _as_completions(rows: list[dict], texts: list[str]) -> list:
    """A completion comes in the form of its prompt: a string, or a message list."""
    return [
        text if isinstance(row["prompt"], str) else [{"role": "assistant", "content": text}]
        for row, text in zip(rows, texts, strict=True)
    ]


def _rollout_metrics(rollout: Rollout, seconds: float) -> dict:
    lengths = rollout.mask.sum(-1).float()
    ended = lengths[~rollout.truncated]
    prompt_tokens = rollout.prompt_mask.sum() * rollout.num_generations
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


def _reward_metrics(experience: Experience, per_func: Tensor, names: list[str]) -> dict:
    groups = experience.rewards.view(len(experience.rollout.prompt_ids), -1)
    highest, lowest = groups.nan_to_num(nan=-torch.inf).amax(-1), groups.nan_to_num(nan=torch.inf).amin(-1)
    mean, std = _mean_and_std(experience.rewards)
    metrics = {
        "reward": mean,
        "reward_std": std,
        "frac_reward_zero_std": (highest <= lowest).float().mean().item(),
        "rows_without_gradient": (~experience.active).float().mean().item(),
    }
    for name, values in zip(names, per_func.unbind(1), strict=True):
        metrics[f"rewards/{name}/mean"], metrics[f"rewards/{name}/std"] = _mean_and_std(values)
    return metrics


def _mean_and_std(values: Tensor) -> tuple[float | None, float]:
    """Of the values that are not NaN; a mean of None says that there are none."""
    given = values[~values.isnan()]
    return given.mean().item() if len(given) else None, given.std().item() if len(given) > 1 else 0.0
