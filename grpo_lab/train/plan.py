"""The plan of a run before weights are loaded: its task, its rows, its configuration and its engine.

Like `cli`, this module imports inside functions what needs transformers.
"""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from grpo_lab.base.checks import InputError
from grpo_lab.base.option import check_value
from grpo_lab.command_options import RUN_OPTIONS, STEP_SETTING_OF_OPTION
from grpo_lab.config import SETTINGS, GRPOConfig, user_formulas
from grpo_lab.config.defaults import default_settings, describe_defaults, is_tiny
from grpo_lab.task_spec import TASK_OPTION_DEFAULTS, TaskSpec, make_task_spec
from grpo_lab.train.engines import Engine, make_engine

if TYPE_CHECKING:  # needs transformers
    from grpo_lab.trainer.run.inputs import RunInputs

TASK_SPEC_ARGUMENTS = (*TASK_OPTION_DEFAULTS, "reward_weights")  # the arguments of `make_task_spec`
MAX_EVAL_PROBLEMS = 100  # largest number of problems in an evaluation during the run


@dataclass(frozen=True)
class RunPlan:
    """Everything that defines a run, except the model's weights.

    options: The options of the command, as `read_options_and_changes` returns them.
    task_spec: The task, its rewards and its system prompt.
    inputs: The inputs of the run, with a `ModelWithoutWeights` in place of the model.
    defaults: The settings of `config` that were not given, as `default_settings` chose them.
    engine: The engine that trains, this package's own loop or TRL's trainer.
    device: The device that the model is trained on.
    num_parameters: Number of parameters of the model.
    step_notes: Lines for the user on the number of steps and on the evaluation.
    """

    options: dict
    task_spec: TaskSpec
    inputs: "RunInputs"
    defaults: dict
    engine: Engine
    device: torch.device
    num_parameters: int
    step_notes: list[str]

    @property
    def config(self) -> GRPOConfig:
        """The whole configuration of the run."""
        return self.inputs.config

    @property
    def has_tiny_model(self) -> bool:
        """True for a model with so few parameters that it counts as tiny (`is_tiny`)."""
        return is_tiny(self.num_parameters)

    @property
    def saved_options(self) -> dict:
        """The options of the command that are not settings, such as model and task, which the run saves with them."""
        return {name: value for name, value in self.options.items() if name not in (*SETTINGS, *STEP_SETTING_OF_OPTION)}

    @property
    def loading_precision(self) -> str | None:
        """The precision to load the model in; None for the default of `load_policy`."""
        return self.engine.loading_precision(self.config, self.device, self.num_parameters)

    def description_lines(self) -> list[str]:
        """Return lines on the plan, the task, its rewards and the default settings."""
        task_lines = self.task_spec.description_lines(self.inputs.dataset)
        return [*self.step_notes, *task_lines, describe_defaults(self.defaults, self.num_parameters)]

    @property
    def reason_memory_not_planned(self) -> str | None:
        """A line that says why the memory of the run is not planned; None if it is."""
        from grpo_lab.memory.planning import LORA_NOT_PLANNED, OTHER_ENGINE_NOT_PLANNED

        if self.engine.lora is not None:
            return LORA_NOT_PLANNED
        return None if self.engine.plans_memory else OTHER_ENGINE_NOT_PLANNED

    def fitted_to_memory(self) -> tuple["RunPlan", list[str]]:
        """Return the plan with settings that fit into memory, and lines for the user on what was chosen.

        On a GPU this chooses the precision, gradient checkpointing and the micro-batch size, on a CPU the micro-batch
        size. A run of a tiny model, with LoRA or on TRL is not changed.
        """
        if self.has_tiny_model:
            return self, []
        if (reason := self.reason_memory_not_planned) is not None:
            return self, [reason] if self.device.type == "cuda" else []
        from grpo_lab.memory.planning import fit_to_memory

        config, lines = fit_to_memory(self.inputs, self.device, fixed_settings=self.options)
        return replace(self, inputs=replace(self.inputs, config=config)), lines


def make_plan(options: dict) -> RunPlan:
    """Make the plan of a run: look up what the options name, and fill in default settings.

    options: The options of the command, as `read_options_and_changes` returns them.
    """
    from grpo_lab.models import pick_device
    from grpo_lab.models.folders import count_parameters, is_bundled_model
    from grpo_lab.models.loading import ModelWithoutWeights, load_config_and_tokenizer
    from grpo_lab.rollout.environments.factory import load_environment_class, load_tools, make_environment
    from grpo_lab.trainer.run.inputs import RunInputs

    engine = make_engine(options)
    tools = load_tools(options.get("tools"))
    environment_class = load_environment_class(options.get("environment"))
    device = pick_device()
    num_parameters = count_parameters(options["model"], device.type)
    task_and_config = make_task_and_config(
        options, num_parameters, device.type, for_bundled_model=is_bundled_model(options["model"], device.type)
    )
    task_spec = task_and_config.task_spec
    rows = task_spec.rows("train", None, task_and_config.config.seed)
    config = convert_to_steps(task_and_config.config, options, len(rows))
    environment = make_environment(
        task_spec.task,
        tools=tools,
        environment_factory=environment_class,
        max_tool_calling_iterations=config.max_tool_calling_iterations,
        tool_timeout=config.tool_timeout,
    )
    eval_rows = None if config.eval_steps is None else task_spec.rows("test", None, seed=1)[:MAX_EVAL_PROBLEMS]
    model_config, tokenizer = load_config_and_tokenizer(options["model"], device.type)
    inputs = RunInputs(
        model=ModelWithoutWeights(model_config),
        tokenizer=tokenizer,
        dataset=rows,
        reward_funcs=task_spec.reward_funcs,
        config=config,
        eval_dataset=eval_rows,
        environment=environment,
    )
    return RunPlan(
        options=options,
        task_spec=task_spec,
        inputs=inputs,
        defaults=task_and_config.defaults,
        engine=engine,
        device=device,
        num_parameters=num_parameters,
        step_notes=_step_notes(options, task_spec, config, len(rows)),
    )


@dataclass(frozen=True)
class TaskAndConfig:
    """The task and the settings of a run, before its rows are read.

    task_spec: The task, its rewards and its system prompt.
    config: The whole configuration, except for the settings of `convert_to_steps`.
    defaults: The settings of `config` that were not given, as `default_settings` chose them.
    """

    task_spec: TaskSpec
    config: GRPOConfig
    defaults: dict


def make_task_and_config(
    options: dict, num_parameters: int, device_type: str, *, for_bundled_model: bool = False
) -> TaskAndConfig:
    """Look up the task and the rewards that the options name, and fill in default settings.

    A loss or an advantage of the user's own is imported and added to the table of losses or advantages.

    options: The options of the command, as `read_options_and_changes` returns them.
    num_parameters: Number of parameters of the model.
    device_type: "cpu" or "cuda".
    for_bundled_model: Whether the model is the bundled tiny model, or trained from it.
    """
    for setting in user_formulas.FORMULA_TABLES:
        if user_formulas.is_user_formula(options.get(setting)):  # typed, since a file may not name code
            user_formulas.register_user_formula(setting, options[setting])
    task_options = {name: options[name] for name in TASK_SPEC_ARGUMENTS if name in options}
    settings = {name: value for name, value in options.items() if name in SETTINGS}
    task_spec = make_task_spec(**task_options, for_bundled_model=for_bundled_model)
    defaults = default_settings(num_parameters, task_spec.task, device_type, settings)
    for name, setting in STEP_SETTING_OF_OPTION.items():
        if name in options and setting in options:
            raise InputError(name, options[name], f"leave it out, or {setting}")
    config = GRPOConfig(**(settings | defaults | {"reward_weights": task_spec.reward_weights}))
    return TaskAndConfig(task_spec, config, defaults)


def convert_to_steps(config: GRPOConfig, options: dict, num_rows: int) -> GRPOConfig:
    """Return the configuration with `num_train_epochs` and `warmup_ratio` converted to numbers of steps.

    An epoch has as many steps as there are whole batches of prompts in the rows, as in TRL, and at least one step.

    num_rows: Number of problems to train on.
    """
    epochs, ratio = options.get("num_train_epochs"), options.get("warmup_ratio")
    if epochs is not None:
        check_value(RUN_OPTIONS["num_train_epochs"], epochs)
        config = replace(config, max_steps=math.ceil(epochs * max(1, num_rows // config.prompts_per_step)))
    if ratio is not None:
        check_value(RUN_OPTIONS["warmup_ratio"], ratio)
        config = replace(config, warmup_steps=math.ceil(ratio * config.max_steps))
    return config


def _step_notes(options: dict, task_spec: TaskSpec, config: GRPOConfig, num_rows: int) -> list[str]:
    """Return lines on the number of steps in the epochs, and on an evaluation on the problems of the training."""
    notes = []
    if (epochs := options.get("num_train_epochs")) is not None:
        batches = f"{num_rows:,} problems, {config.prompts_per_step} per step"
        notes.append(f"num_train_epochs {epochs:g} of {batches}: {config.max_steps:,} steps")
    if config.eval_steps is not None and not task_spec.task.has_held_out:
        notes.append(f"task {task_spec.task.name}: no problem is held out; the evaluations see those of the training")
    return notes
