"""The loop: sample, reward, advantages, log-probabilities, step.

Read `train` first; each of its lines is a phase of notebook 07.

A row whose advantage is zero carries no gradient when there is neither a KL term nor an entropy bonus, so it is not
computed (its place in every denominator stays). Each step draws from a random stream of its own, seeded by the run's
seed and the step, which is why a resumed run continues bit for bit on the CPU.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from grpo_lab.base.checks import InputError
from grpo_lab.config import GRPOConfig
from grpo_lab.objective import LOSSES, microbatch_loss, token_mean
from grpo_lab.rollout.environments.environment import abilities, pick_environment
from grpo_lab.rollout.environments.text_environment import TextEnvironment
from grpo_lab.rollout.environments.tools import ToolEnvironment
from grpo_lab.tasks import Rows
from grpo_lab.trainer.collecting import collect
from grpo_lab.trainer.experience import Experience
from grpo_lab.trainer.experience_logprobs import cheapest_order, completion_logprobs, logprobs_without_gradient
from grpo_lab.trainer.metrics import Clock, UpdateMetrics, mean_of_updates
from grpo_lab.trainer.optim import PolicyOptimizer
from grpo_lab.trainer.run import Run


def train(
    model,
    tokenizer,
    dataset: Rows,
    reward_funcs: Callable | list[Callable] | None,
    config: GRPOConfig,
    callback: Callable[[int, dict], None] | None = None,
    eval_dataset: Rows | None = None,
    *,
    tools: list[Callable] | None = None,
    environment_factory: Callable | None = None,
    environment: TextEnvironment | ToolEnvironment | None = None,
) -> list[dict]:
    """Train the model in place with GRPO.

    Args:
        model, tokenizer: as `load_policy` returns them; all parameters that require a gradient are trained.
        dataset: rows with a "prompt" (string or message list), as a list of dicts or a `datasets.Dataset`; their other
            columns go to the reward functions.
        reward_funcs: one or several, with TRL's signature; None, where the environment has a reward of its own.
        config: the settings.
        callback: called with the step and its metrics after every step.
        eval_dataset: held-out rows, sampled and rewarded every `eval_steps` steps and after the last one.
        tools, environment_factory: functions that the policy may call, and a class whose instances are the worlds that
            episodes are played in, as TRL takes both.
        environment: what replies within a completion, such as a `TextEnvironment`; instead of those two.

    Returns:
        One dict of metrics per step, mostly under TRL's names; the same as in metrics.jsonl.

    Raises:
        ValueError: for a dataset or settings that do not fit.
        FileExistsError: if the output folder holds a run already and `resume_from_checkpoint` is off, or other
            files under names that the run needs.
        FileNotFoundError: if there is no run to resume.
        BlockingIOError: if another run is at work in the folder.
        Stopped: a KeyboardInterrupt, when Ctrl-C or SIGTERM came; the step at hand is finished and saved.
        RuntimeError: when `max_nonfinite_steps` updates in a row had a loss or gradient that was not finite.
    """
    environment = pick_environment(config, environment, tools, environment_factory)
    if reward_funcs is None and not abilities(environment).has_reward:
        raise InputError("reward_funcs", None, "expected at least one, or an environment with get_reward")
    with Run(model, tokenizer, dataset, reward_funcs, config, eval_dataset, environment) as run:
        for step in run.steps():
            clock = Clock(model.device)
            rows = run.rows_of_step(step)
            trainer_state = run.trainer_state(step)
            experience, metrics = collect(
                model, tokenizer, rows, reward_funcs, config,
                clock=clock, environment=environment, trainer_state=trainer_state,
            )  # fmt: skip
            if config.beta > 0:
                with clock("time/logprobs"):
                    ref_logp = logprobs_without_gradient(run.reference_model(step), experience, config)
                experience = replace(experience, ref_logp=ref_logp)
            metrics |= run.measure_and_log(step, experience, clock)
            metrics |= update(model, run.optimizer, experience, config, run.learning_rate(step), clock)
            run.record(step, metrics | clock.seconds, callback)
    return run.history


def update(
    model, optimizer: PolicyOptimizer, experience: Experience, config: GRPOConfig, lr: float, clock: Clock | None = None
) -> dict:
    """Make all updates of one step: `num_iterations` passes over the experience, `update_batch_size` rows at a time."""
    clock = clock or Clock(model.device)
    updates: list[dict] = []
    as_sampled = experience
    with clock("time/update"):
        if config.updates_per_step > 1 and experience.old_logp is None:
            with clock("time/logprobs"):
                old_logp = logprobs_without_gradient(model, experience, config, experience.rows_with_gradient(config))
            experience = replace(experience, old_logp=old_logp)
        for rows in _rows_of_updates(len(experience), config):
            # Before the first update the policy is the one that sampled: its ratio is 1, not 1 up to rounding.
            is_first = not updates
            batch = as_sampled[rows] if is_first else experience[rows]
            metrics = accumulate_gradient(model, optimizer, batch, config, clock)
            updates.append(metrics | {"grad_norm": optimizer.step(lr, metrics["loss"])})
    skipped = (~experience.rows_with_gradient(config)).float().mean().item()
    step_metrics = {"learning_rate": lr, "nonfinite_steps": optimizer.nonfinite_total, "rows_without_gradient": skipped}
    return mean_of_updates(updates) | step_metrics


def accumulate_gradient(
    model, optimizer: PolicyOptimizer, experience: Experience, config: GRPOConfig, clock: Clock | None = None
) -> dict:
    """Add up the gradient of one update, micro-batch by micro-batch.

    How the update is cut into micro-batches changes nothing (except for "bnpo"). The experience holds the rows of this
    update alone.
    """
    clock = clock or Clock(model.device)
    num_items = experience.loss_mask.sum()
    metrics = UpdateMetrics(num_items)
    loss_arguments = config.loss_arguments()
    if LOSSES[config.loss_type].divided_by != "microbatch_tokens":  # else the cut matters, and so the order
        experience = experience[cheapest_order(model, experience.rollout, experience.rows_with_gradient(config))]
    for part in experience.split(config.rows_at_once):
        has_gradient = part.rows_with_gradient(config)
        with clock("time/logprobs"):
            logp, entropy = completion_logprobs(model, part, config, has_gradient)
        advantages = part.advantages
        if advantages.ndim == 2:  # one per token: what stands in the padding means nothing
            advantages = torch.where(part.loss_mask, advantages, 0)
        loss, means = microbatch_loss(
            logp, advantages, part.loss_mask, len(experience), num_items,
            old_logp=part.old_logp, ref_logp=part.ref_logp, **loss_arguments,
        )  # fmt: skip
        if entropy is not None:
            loss = loss - config.entropy_coef * token_mean(entropy, part.loss_mask, num_items)
        optimizer.backward(loss)
        metrics.add(part, has_gradient, logp, loss, means)
    return metrics.total


def _rows_of_updates(count: int, config: GRPOConfig) -> Iterator[Int[Tensor, " R"]]:
    """The rows of each update in turn. A pass over all of them draws its order when it begins."""
    rows = torch.arange(count)
    for _ in range(config.num_iterations):
        if count > config.update_batch_size:
            rows = rows[torch.randperm(count)]
        yield from rows.split(config.update_batch_size)
