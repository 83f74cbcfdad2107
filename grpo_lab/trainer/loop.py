"""The training loop: sample, reward, compute advantages and log-probabilities, update.

Read `train_run` first; the statements of its loop are the phases of notebook 07.

Without a KL term or an entropy bonus, a row whose advantage is zero has no gradient. The loop skips such rows, and
still counts them in every denominator. Each step has its own random stream, seeded by the seed of the run and the step.
That is why a resumed run continues bit for bit on the CPU.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from grpo_lab.base.checks import InputError
from grpo_lab.config import GRPOConfig
from grpo_lab.objective import LOSSES, microbatch_loss, token_mean
from grpo_lab.rollout.environments.environment import Environment
from grpo_lab.rollout.environments.factory import make_environment
from grpo_lab.tasks import Rows
from grpo_lab.trainer.collecting import collect
from grpo_lab.trainer.experience import (
    Experience,
    completion_logprobs,
    logprobs_without_gradient,
    order_for_microbatches,
)
from grpo_lab.trainer.metrics import Clock, UpdateMetrics, mean_of_updates, merge_metrics
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
    environment: Environment | None = None,
    saved_options: dict | None = None,
) -> list[dict]:
    """Train the model in place with GRPO.

    Args:
        model: A causal language model, as `load_policy` returns it; its parameters that require a gradient are trained,
            and its dropout is switched off permanently.
        tokenizer: The tokenizer of the model, as `load_policy` returns it.
        dataset: Rows with a "prompt" (string or message list), as a list of dicts or a `datasets.Dataset`; the reward
            functions get their other columns.
        reward_funcs: One reward function or several, with TRL's signature. None if the environment computes the reward.
        config: The settings of the run.
        callback: Function that is called with the number of the step, counted from 1, and its metrics after every step.
        eval_dataset: Held-out rows, sampled and rewarded every `eval_steps` steps and after the last step.
        tools: Functions that the policy may call, as in TRL.
        environment_factory: Class whose instances are the environments of the episodes, as in TRL.
        environment: An environment that replies within a completion, such as a `TextEnvironment`. It excludes `tools`
            and `environment_factory`.
        saved_options: Options of a command that are not settings, such as the names of the model and the task. They are
            saved with the settings, as JSON. None: there are none.

    Returns:
        One dict of metrics per step, mostly under TRL's names; metrics.jsonl holds the same.

    Raises:
        ValueError: if the dataset or the settings are invalid.
        FileExistsError: if the output folder holds a run already and `resume_from_checkpoint` is off, or if it holds
            other files under names that the run needs.
        FileNotFoundError: if there is no run to resume.
        BlockingIOError: if another run is using the folder.
        Stopped: (a KeyboardInterrupt) after Ctrl-C or SIGTERM; the current step is finished and saved first.
        RuntimeError: if the loss or the gradient of `max_nonfinite_steps` updates in a row was not finite.
    """
    environment = make_environment(
        tools=tools, environment_factory=environment_factory, environment=environment,
        max_tool_calling_iterations=config.max_tool_calling_iterations, tool_timeout=config.tool_timeout,
    )  # fmt: skip
    run = Run(model, tokenizer, dataset, reward_funcs, config, eval_dataset, environment, saved_options)
    return train_run(run, callback)


def train_run(run: Run, callback: Callable[[int, dict], None] | None = None) -> list[dict]:
    """Make all steps of a run; its inputs, the callback and the result are those of `train`."""
    inputs = run.inputs
    model, tokenizer, reward_funcs, config = inputs.model, inputs.tokenizer, inputs.reward_funcs, inputs.config
    environment = inputs.environment
    if reward_funcs is None and (environment is None or not environment.has_reward):
        raise InputError("reward_funcs", None, "expected at least one, or an environment with get_reward")
    with run:
        for step in run.steps():
            clock = Clock(model.device)
            data_rows = run.data_rows_of_step(step)
            trainer_state = run.trainer_state(step)
            experience, metrics = collect(
                model, tokenizer, data_rows, reward_funcs, config,
                clock=clock, environment=environment, trainer_state=trainer_state,
            )  # fmt: skip
            if config.beta > 0:
                with clock("time/logprobs"):
                    ref_logp = logprobs_without_gradient(run.reference_model(step), experience, config)
                experience = replace(experience, ref_logp=ref_logp)
            kl_metrics = run.measure_kl_if_due(experience, clock)
            run.write_completions_if_due(step, experience)
            update_metrics = update(model, run.optimizer, experience, config, run.learning_rate(step), clock)
            run.record(step, merge_metrics(metrics, kl_metrics, update_metrics, clock.totals), callback)
    return run.history


def update(
    model, optimizer: PolicyOptimizer, experience: Experience, config: GRPOConfig, lr: float, clock: Clock | None = None
) -> dict:
    """Make all updates of one step: `num_iterations` passes over the experience, `update_batch_size` rows at a time.

    Args:
        model, optimizer, config: The policy, its optimizer, and the settings of the run.
        experience: The B rows of the step. Without `old_logp` it is computed here if the step has several updates.
        lr: The learning rate of all updates of the step.
        clock: Clock to which the seconds of each phase are added. None: they are not recorded.

    Returns:
        The mean metrics of the updates, by name.
    """
    clock = clock or Clock(model.device)
    metrics_of_updates: list[dict] = []
    experience_of_first_update = experience
    gradient_rows = experience.rows_with_gradient(every_row=config.needs_every_row)
    with clock("time/update"):
        if config.updates_per_step > 1 and experience.old_logp is None:
            with clock("time/logprobs"):
                old_logp = logprobs_without_gradient(model, experience, config, gradient_rows)
            experience = replace(experience, old_logp=old_logp)
        for update_index, row_indices in enumerate(_row_indices_of_updates(len(experience), config)):
            # In the first update the policy is still the one that sampled. Without the computed `old_logp` its ratio is
            # exactly 1; with it, the ratio would be 1 only up to rounding.
            batch = (experience_of_first_update if update_index == 0 else experience)[row_indices]
            metrics = accumulate_gradient(model, optimizer, batch, config, clock)
            metrics_of_updates.append(merge_metrics(metrics, {"grad_norm": optimizer.step(lr, metrics["loss"])}))
    step_metrics = {
        "learning_rate": lr,
        "nonfinite_steps": optimizer.num_skipped_updates,
        "rows_without_gradient": (~gradient_rows).float().mean().item(),
    }
    return merge_metrics(mean_of_updates(metrics_of_updates), step_metrics)


def accumulate_gradient(
    model, optimizer: PolicyOptimizer, experience: Experience, config: GRPOConfig, clock: Clock | None = None
) -> dict:
    """Sum the gradient of one update over its micro-batches; return the metrics of the update.

    The sum does not depend on the size of the micro-batches (except for "bnpo"). The experience holds the rows of this
    update and no others.
    """
    clock = clock or Clock(model.device)
    num_items = experience.loss_mask.sum()
    metrics = UpdateMetrics(num_items)
    loss_arguments = config.loss_arguments()
    gradient_rows = experience.rows_with_gradient(every_row=config.needs_every_row)
    if experience.old_logp is not None:
        # Rows without gradient get log-probabilities of 0 below. So their ratio is 1, whatever `old_logp` the caller
        # has put in: they count as 1 in the metric "ratio", and in the clip ratios as not clipped, as in TRL.
        experience = replace(experience, old_logp=torch.where(gradient_rows[:, None], experience.old_logp, 0))
    if not LOSSES[config.loss_type].depends_on_microbatches:
        order = order_for_microbatches(model, experience.rollout, gradient_rows)
        experience, gradient_rows = experience[order], gradient_rows[order]
    size = config.microbatch_size
    for microbatch, microbatch_gradient_rows in zip(experience.split(size), gradient_rows.split(size), strict=True):
        with clock("time/logprobs"):
            logp, entropy = completion_logprobs(model, microbatch, config, microbatch_gradient_rows)
        advantages = microbatch.advantages
        if advantages.ndim == 2:  # one per token: the values at padding may be anything, even NaN
            advantages = torch.where(microbatch.loss_mask, advantages, 0)
        loss, microbatch_metrics = microbatch_loss(
            logp, advantages, microbatch.loss_mask, len(experience), num_items,
            old_logp=microbatch.old_logp, ref_logp=microbatch.ref_logp, **loss_arguments,
        )  # fmt: skip
        if entropy is not None:
            loss = loss - config.entropy_coef * token_mean(entropy, microbatch.loss_mask, num_items)
        optimizer.backward(loss)
        metrics.add(microbatch, microbatch_gradient_rows, logp, loss, microbatch_metrics)
    return metrics.combine()


def _row_indices_of_updates(num_rows: int, config: GRPOConfig) -> Iterator[Int[Tensor, " R"]]:
    """Yield the row indices of each update; unless an update takes all rows, every pass over them draws a new order."""
    row_indices = torch.arange(num_rows)
    for _ in range(config.num_iterations):
        if num_rows > config.update_batch_size:
            row_indices = row_indices[torch.randperm(num_rows)]
        yield from row_indices.split(config.update_batch_size)
