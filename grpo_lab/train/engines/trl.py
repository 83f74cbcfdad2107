"""A run on TRL's GRPOTrainer: it samples, compares, computes the loss and steps.

Ours stay the order of the problems, the way rewards are called, the learning rate of each update, what is decayed,
held-out evaluation, and the folder. What TRL logs of a step goes under its own names, which are ours too; what it does
not measure (`time/...`, `tokens_per_second`, `sampling/logp_difference_max`) is absent.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import torch
from transformers import TrainerCallback

from grpo_lab.base.checks import InputError
from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import precision_of
from grpo_lab.rollout.probe import OF_PROMPTS, probe
from grpo_lab.rollout.prompts import end_token_ids
from grpo_lab.rollout.tools import ToolEnvironment, pick_environment
from grpo_lab.rollout.tools.dialogue import Dialogue
from grpo_lab.tasks import Rows
from grpo_lab.train.engines.settings import FLAGS, check_settings
from grpo_lab.train.engines.trl_trainer import make_trainer
from grpo_lab.trainer import Run
from grpo_lab.trainer.evaluation import evaluate_policy
from grpo_lab.trainer.fingerprints import fingerprints
from grpo_lab.trainer.folder import METRICS, RunFolder
from grpo_lab.trainer.folder.checkpoint import check_savable
from grpo_lab.trainer.reports import open_reports
from grpo_lab.trainer.run import training_mode


def train(
    model,
    tokenizer,
    dataset: Rows,
    reward_funcs: Callable | list[Callable],
    config: GRPOConfig,
    callback: Callable[[int, dict], None] | None = None,
    eval_dataset: Rows | None = None,
    *,
    tools: list[Callable] | None = None,
    environment_factory: Callable | None = None,
    environment=None,
) -> list[dict]:
    """Train the model in place, with the arguments, metrics and errors of `grpo_lab.trainer.train`; its end alone is
    kept, and a run that was broken off does not go on.

    Raises:
        InputError: for a setting that TRL lacks, or a precision that it cannot train in.
    """
    check_settings(config)
    if environment is not None:
        reason = "is trl, which has no environment that replies within a completion"
        raise InputError("engine", "trl", "train with grpo_lab's own loop", found=reason)
    environment = pick_environment(config, None, tools, environment_factory)
    rows = rows_in_order(model, tokenizer, dataset, reward_funcs, config, eval_dataset, environment)
    engine = {"engine": "trl"}
    config = _in_its_precision(model, config)
    inputs = model, tokenizer, eval_dataset, reward_funcs, config
    evaluate = partial(
        evaluate_policy, *inputs, environment, cache_implementation="dynamic"
    )  # the model's own forward pass
    folder = None if config.output_dir is None else RunFolder(config, config.saved() | engine)
    if folder is not None:
        check_savable(model, tokenizer)
    with folder or nullcontext():
        if folder is not None:
            prints = fingerprints(model, tokenizer, dataset, reward_funcs, eval_dataset, environment)
            prints |= {"engine": engine}
            folder.open(model, None, None, prints)
        seeds = torch.random.fork_rng(devices=range(torch.cuda.device_count()))
        with seeds, training_mode(model, model.training), open_reports(config, []) as reports:
            steps = Steps(config, callback, evaluate, folder, reports)
            with reading_calls(tokenizer, environment):
                trainer = make_trainer(model, tokenizer, rows, reward_funcs, config, steps, environment)
                trainer.train()
            trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)  # the model has its `forward` back
            if folder is not None:
                folder.save_model(model, tokenizer)
    return steps.history


def _in_its_precision(model, config: GRPOConfig) -> GRPOConfig:
    """The configuration with the precision that the model is trained in."""
    mode = precision_of(model, config).name
    if mode not in FLAGS:
        raise InputError("precision", mode, f"expected one of {', '.join(FLAGS)} with --engine trl")
    return replace(config, precision=mode, bf16=False, fp16=False)


@contextmanager
def reading_calls(tokenizer, environment: ToolEnvironment | None) -> Iterator[None]:
    """The tokenizer with the response template that our own loop reads calls with, for a while."""
    before = getattr(tokenizer, "response_template", None)
    if environment is not None and environment.schemas:
        tokenizer.response_template = Dialogue(tokenizer, environment.schemas).response_template
    try:
        yield
    finally:
        tokenizer.response_template = before


def rows_in_order(
    model, tokenizer, dataset: Rows, reward_funcs, config: GRPOConfig, eval_dataset=None, environment=None
) -> list[dict]:
    """The problems of all steps, in the order in which our own loop takes them, after all of its checks.

    Raises:
        InputError: if some prompts are strings and others lists of messages, which TRL does not mix.
    """
    checked_config = config.without(output_dir=None, beta=0.0)
    run = Run(model, tokenizer, dataset, checked_config, reward_funcs, eval_dataset, environment)
    rows = [row for step in range(config.max_steps) for row in run.rows_of_step(step)]
    habits = probe(tokenizer, (row["prompt"] for row in rows), end_token_ids(model, tokenizer))
    if unmended := next((habits[name] for name in OF_PROMPTS if name in habits), None):
        reason = f"is trl, which makes its own prompts, and {unmended.split(':')[0]}"
        raise InputError("engine", "trl", "train with grpo_lab's own loop, which mends that", found=reason)
    if "time" in habits:
        print("prompts: TRL makes its own, with the date of the day on which it runs")
    if len({isinstance(row["prompt"], str) for row in rows}) > 1:
        expected = "expected strings alone or messages alone, with --engine trl"
        raise InputError("dataset", dataset, expected, found="has prompts of two kinds")
    return rows


class Steps(TrainerCallback):
    """A callback that turns TRL's logs of a rollout's updates into the metrics of a step, and writes them.

    evaluate: returns the metrics of held-out problems; called as often as the configuration says.
    """

    def __init__(self, config: GRPOConfig, callback=None, evaluate=None, folder=None, reports=None):
        self.config, self.callback, self.evaluate, self.folder = config, callback, evaluate, folder
        self.reports, self.history = reports, []

    def on_train_begin(self, args, state, control, **_):
        self._started = time.perf_counter()

    def on_log(self, args, state, control, logs, **_):
        if "loss" not in logs:  # the summary of the whole run
            return
        config, done = self.config, state.global_step // self.config.updates_per_step
        metrics = {"step": done} | {name: value for name, value in logs.items() if name != "epoch"}
        metrics = {name: value for name, value in metrics.items() if value or not name.endswith("/frac_none")}
        if config.eval_steps is not None and (done % config.eval_steps == 0 or done == config.max_steps):
            metrics |= self.evaluate(trainer_state=state)
        now = time.perf_counter()
        metrics |= {"num_tokens": int(metrics["num_tokens"]), "step_time": now - self._started}
        self._started = now
        self.history.append(metrics)
        if self.folder is not None:
            self.folder.append(METRICS, [metrics])
        if self.reports is not None:
            self.reports.show(metrics)
        if self.callback is not None:
            self.callback(done, metrics)
