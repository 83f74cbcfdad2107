"""A run before its weights are loaded: the task, its rows, the configuration and the engine, with what checks them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from grpo_lab.base.checks import InputError, check_between, check_positive
from grpo_lab.config import SETTINGS, GRPOConfig
from grpo_lab.config.defaults import FEW_PARAMETERS, default_settings, describe_defaults
from grpo_lab.task_spec import TASK_OPTION_DEFAULTS, TaskSpec, make_task_spec
from grpo_lab.tasks import Rows
from grpo_lab.train.engines.options import OURS, Engine, make_engine
from grpo_lab.train.engines.processes import is_main

if TYPE_CHECKING:  # transformers takes seconds to import, and an option that is wrong is answered at once
    import torch

TASK_OPTIONS = (*TASK_OPTION_DEFAULTS, "reward_weights")  # those that `make_task_spec` takes
EPOCH_OPTIONS = ("num_train_epochs", "warmup_ratio")  # counted into steps once the rows are known
EVAL_PROBLEMS = 100  # problems of an evaluation during the run


@dataclass(frozen=True)
class RunPlan:
    """Everything that defines a run, except the model's weights.

    options: those of the command, as `read_options_and_changes` returns them.
    defaults: the settings of `config` that were not given, filled in by `default_settings`.
    environment_arguments: keywords of `train` for tools or an environment; empty where the policy writes alone.
    notes: lines on what the planning decided.
    """

    options: dict
    task_spec: TaskSpec
    config: GRPOConfig
    defaults: dict
    engine: Engine
    environment_arguments: dict[str, Any]
    device: "torch.device"
    parameters: int
    rows: Rows
    eval_rows: Rows | None  # None: the run does not evaluate itself
    notes: list[str]

    @property
    def small(self) -> bool:
        """True for a model as small as the tiny one, which is loaded at once."""
        return self.parameters < FEW_PARAMETERS

    @cached_property
    def model_parts(self) -> tuple[Any, Any]:
        """The configuration and the tokenizer of the model, before its weights are loaded."""
        from transformers import AutoConfig, AutoTokenizer

        from grpo_lab.models.folders import usable_folder
        from grpo_lab.models.loading import open_part

        folder, _ = usable_folder(self.options["model"], self.device.type)
        return open_part(AutoConfig, folder), open_part(AutoTokenizer, folder)

    def description_lines(self) -> list[str]:
        """Lines on the planning, the task, its rewards and the settings that were filled in."""
        task_lines = self.task_spec.description_lines(self.rows)
        return [*self.notes, *task_lines, describe_defaults(self.defaults, self.parameters)]

    def fitted_to_memory(self) -> tuple["RunPlan", list[str]]:
        """The plan with what fits, and lines on it: on a GPU precision and micro-batch size, on a CPU the latter."""
        from grpo_lab.memory.planning import LORA_NOT_PLANNED, fit_to_cpu, fit_to_gpu

        if self.engine.lora is not None:
            return self, [LORA_NOT_PLANNED] if self.device.type == "cuda" else []
        if self.engine.name != OURS:
            return self, []
        if self.device.type == "cpu":
            precision = self.engine.precision(self.config, self.device, self.small) or "fp32"
            config, lines = fit_to_cpu(*self.model_parts, self.rows, self.config, precision, self.options)
        else:
            config, lines = fit_to_gpu(*self.model_parts, self.rows, self.config, self.device, self.options)
        return replace(self, config=config), lines


def make_plan(options: dict, checker: Callable[..., None]) -> RunPlan:
    """Look up what the options name, fill in the settings that were not given, and check what can be checked by then.

    checker: calls a check with its arguments, and raises its error or collects it; a `CheckRunner`.
    """
    from grpo_lab.models import pick_device
    from grpo_lab.models.folders import count_parameters
    from grpo_lab.rollout.environments.text_environment import task_environment
    from grpo_lab.rollout.environments.tools.named import load_environment_arguments
    from grpo_lab.trainer.folder import check_folder
    from grpo_lab.trainer.trackers import check_trackers

    engine = make_engine(options)
    environment_arguments = load_environment_arguments(options.get("tools"), options.get("environment"))
    device = pick_device()
    parameters = count_parameters(options["model"], device.type)
    task_spec, config, defaults = task_and_settings(options, parameters, device.type)
    checker(engine.check, config)
    if is_main():  # the run checks these again
        checker(check_folder, config)
        checker(check_trackers, config)
    rows = task_spec.rows("train", None, config.seed)
    config = count_epochs(config, options, len(rows))
    environment = task_environment(task_spec.task)
    if environment is not None:
        environment_arguments["environment"] = environment
    eval_rows = _eval_rows(task_spec, config)
    return RunPlan(
        options=options,
        task_spec=task_spec,
        config=config,
        defaults=defaults,
        engine=engine,
        environment_arguments=environment_arguments,
        device=device,
        parameters=parameters,
        rows=rows,
        eval_rows=eval_rows,
        notes=_notes(options, task_spec, config, len(rows)),
    )


def task_and_settings(options: dict, parameters: int, device_type: str) -> tuple[TaskSpec, GRPOConfig, dict]:
    """Task and rewards, the whole configuration for a model of this size, and its settings that were not given."""
    task_options = {name: options[name] for name in TASK_OPTIONS if name in options}
    settings = {name: value for name, value in options.items() if name in SETTINGS}
    task_spec = make_task_spec(**task_options, small=parameters < FEW_PARAMETERS)
    defaults = default_settings(parameters, task_spec.task, device_type, settings)
    if "num_train_epochs" in options and "max_steps" in options:
        raise InputError("num_train_epochs", options["num_train_epochs"], "leave it out, or max_steps")
    command = {name: value for name, value in options.items() if name not in (*SETTINGS, *EPOCH_OPTIONS)}
    config = GRPOConfig(**(settings | defaults | {"reward_weights": task_spec.reward_weights}), command=command)
    return task_spec, config, defaults


def count_epochs(config: GRPOConfig, options: dict, num_rows: int) -> GRPOConfig:
    """The configuration with `num_train_epochs` and `warmup_ratio` counted into steps, for so many rows to train on.

    An epoch has as many steps as whole batches of prompts, as in TRL, and at least one.
    """
    epochs, ratio = (options.get(name) for name in EPOCH_OPTIONS)
    if epochs is not None:
        check_positive("num_train_epochs", epochs)
        config = replace(config, max_steps=math.ceil(epochs * max(1, num_rows // config.prompts_per_step)))
    if ratio is not None:
        check_between("warmup_ratio", ratio, 0, 1)
        config = replace(config, warmup_steps=math.ceil(ratio * config.max_steps))
    return config


def _eval_rows(task_spec: TaskSpec, config: GRPOConfig) -> Rows | None:
    """The held-out problems, if the run is to evaluate itself."""
    if config.eval_steps is None:
        return None
    return task_spec.rows("test", None, seed=1)[:EVAL_PROBLEMS]


def _notes(options: dict, task_spec: TaskSpec, config: GRPOConfig, num_rows: int) -> list[str]:
    """Lines on the steps that epochs were counted into, and on an evaluation that sees the problems of the training."""
    notes = []
    if (epochs := options.get("num_train_epochs")) is not None:
        batches = f"{num_rows:,} problems, {config.prompts_per_step} per step"
        notes.append(f"num_train_epochs {epochs:g} of {batches}: {config.max_steps:,} steps")
    if config.eval_steps is not None and not task_spec.task.held_out:
        notes.append(f"task {task_spec.task.name}: no problem is held out; the evaluations see those of the training")
    return notes
