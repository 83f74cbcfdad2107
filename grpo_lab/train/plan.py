"""The plan of a run before weights are loaded: its task, its rows, its configuration and its engine."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec

import torch

from grpo_lab.base.checks import InputError, InputPackageError
from grpo_lab.base.option import check_unused, check_value, reasons_unread
from grpo_lab.command_options import COMMAND_OPTIONS, ENGINE_OPTIONS, STEP_SETTING_OF_OPTION, TRL, VLLM_OPTIONS
from grpo_lab.config import SETTINGS, GRPOConfig, user_formulas
from grpo_lab.config.defaults import default_settings, describe_defaults, is_tiny
from grpo_lab.config.lora import LORA_DEFAULTS, check_no_dropout, check_peft
from grpo_lab.memory.planning import LORA_NOT_PLANNED, OTHER_ENGINE_NOT_PLANNED, fit_to_memory
from grpo_lab.models import pick_device
from grpo_lab.models.folders import ModelFiles, find_model
from grpo_lab.models.loading import ModelWithoutWeights, load_config_and_tokenizer
from grpo_lab.rollout.environments.factory import load_environment_class, load_tools, make_environment
from grpo_lab.task_spec import TaskSpec, make_task_spec
from grpo_lab.train.engines import Engine, OurEngine
from grpo_lab.train.options import RunOptions
from grpo_lab.train.processes import world_size
from grpo_lab.trainer.run.inputs import RunInputs
from grpo_lab.trainer.run.reports import rewards_in_words

MAX_EVAL_PROBLEMS = 100  # largest number of problems in an evaluation during the run


@dataclass(frozen=True)
class RunPlan:
    """Everything that defines a run, except the model's weights.

    options: The options of the command.
    task_spec: The task, its rewards and its system prompt.
    inputs: The inputs of the run, with a `ModelWithoutWeights` in place of the model.
    engine: The engine that trains, this package's own loop or TRL's trainer.
    device: The device that the model is trained on.
    model_files: The files of the model.
    """

    options: RunOptions
    task_spec: TaskSpec
    inputs: RunInputs
    engine: Engine
    device: torch.device
    model_files: ModelFiles

    @property
    def config(self) -> GRPOConfig:
        """The whole configuration of the run."""
        return self.inputs.config

    @property
    def num_parameters(self) -> int:
        """Number of parameters of the model."""
        return self.model_files.num_parameters

    @property
    def loading_precision(self) -> str | None:
        """The precision to load the model in; None for the default of `load_policy`."""
        return self.engine.loading_precision(self.config, self.device, self.num_parameters)

    def description_lines(self) -> Iterator[str]:
        """Yield lines on the plan: its steps, its task, its default settings, and how its engine differs from ours."""
        config, task, num_rows = self.config, self.task_spec.task, len(self.inputs.dataset)
        if (epochs := self.options.num_train_epochs) is not None:
            batches = f"{num_rows:,} problems, {config.prompts_per_step} per step"
            yield f"num_train_epochs {epochs:g} of {batches}: {config.max_steps:,} steps"
        if config.eval_steps is not None and not task.has_held_out:
            yield f"task {task.name}: no problem is held out; the evaluations see those of the training"
        yield from self.task_spec.description_lines(self.inputs.dataset)
        settings = self.options.settings
        defaults = default_settings(self.num_parameters, task, self.device.type, settings)
        yield describe_defaults(defaults, self.num_parameters)
        yield from self.engine.difference_lines(config, self.options.changed_settings)

    def closing_lines(self, history: list[dict]) -> Iterator[str]:
        """Yield the lines after the training: the last step, the folder, and the command that evaluates the model."""
        if history:
            last = history[-1]
            yield f"step {last['step']}: {rewards_in_words(last)}"
            if "eval/reward" in last:
                yield rewards_in_words(last, "eval/")
        yield f"saved to {self.config.output_dir}"
        task = self.task_spec.task
        if task.user_data is None or task.user_data.rows("test"):
            problems = "held-out" if task.has_held_out else "the same"
            yield f"measure it on {problems} problems: {self.options.evaluation_command()}"

    @property
    def reason_memory_not_planned(self) -> str | None:
        """A line that says why the memory of the run is not planned; None if it is."""
        if self.engine.lora is not None:
            return LORA_NOT_PLANNED
        return None if self.engine.plans_memory else OTHER_ENGINE_NOT_PLANNED

    def fitted_to_memory(self) -> tuple["RunPlan", list[str]]:
        """Return the plan with settings that fit into memory, and lines for the user on what was chosen.

        On a GPU this chooses the precision, gradient checkpointing and the micro-batch size, on a CPU the micro-batch
        size. A run of a tiny model, with LoRA or on TRL is not changed.
        """
        if is_tiny(self.num_parameters):
            return self, []
        if (reason := self.reason_memory_not_planned) is not None:
            return self, [reason] if self.device.type == "cuda" else []
        config, lines = fit_to_memory(self.inputs, self.device, fixed_settings=self.options.explicit)
        return replace(self, inputs=replace(self.inputs, config=config)), lines


def make_plan(options: RunOptions) -> RunPlan:
    """Make the plan of a run: look up what the options name, and fill in default settings."""
    engine = make_engine(options)
    tools = load_tools(options.tools)
    environment_class = load_environment_class(options.environment)
    device = pick_device()
    files = find_model(options.model, device.type)
    task_spec = make_task_spec(**options.task_options, for_bundled_model=files.is_bundled)
    config = make_config(options, task_spec, files.num_parameters, device.type)
    rows = task_spec.rows("train", None, config.seed)
    config = with_epochs_as_steps(config, options, len(rows))
    environment = make_environment(
        task_spec.task,
        tools=tools,
        environment_factory=environment_class,
        max_tool_calling_iterations=config.max_tool_calling_iterations,
        tool_timeout=config.tool_timeout,
    )
    eval_rows = None if config.eval_steps is None else task_spec.rows("test", None, seed=1)[:MAX_EVAL_PROBLEMS]
    model_config, tokenizer = load_config_and_tokenizer(files)
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
        engine=engine,
        device=device,
        model_files=files,
    )


def make_engine(options: RunOptions) -> Engine:
    """Return the engine that the options choose.

    Raises:
        InputError: for options that contradict each other, values out of range, and packages that are not installed.
    """
    for name, value in options.engine_options.items():
        check_value(ENGINE_OPTIONS[name], value)
    chosen = {name: value for name, value in options.engine_options.items() if not ENGINE_OPTIONS[name].is_off(value)}
    check_unused(chosen, ENGINE_OPTIONS)
    is_trl = chosen.get("engine") == TRL
    if "fsdp" in chosen and world_size() == 1:
        raise InputError("fsdp", True, "expected it only on several processes: torchrun --nproc_per_node 2 -m ...")
    lora = None
    if "use_peft" in chosen:
        lora = LORA_DEFAULTS | {name: chosen[name] for name in LORA_DEFAULTS if name in chosen}
        if not is_trl:
            check_no_dropout(lora["lora_dropout"])
        check_peft("use_peft", True)
    if not is_trl:
        return OurEngine(lora)
    if find_spec(TRL) is None:
        raise InputPackageError("engine", TRL, f'{TRL} is not installed; pip install "grpo-lab[engines]"')
    vllm = None
    if "use_vllm" in chosen:
        if find_spec("vllm") is None:
            raise InputPackageError("use_vllm", True, 'vllm is not installed; pip install "vllm", on an NVIDIA GPU')
        vllm = {name: chosen[name] for name in ("use_vllm", *VLLM_OPTIONS) if name in chosen}
    from grpo_lab.train.trl.engine import TrlEngine  # a run on our own loop needs none of it

    return TrlEngine(lora, fsdp="fsdp" in chosen, vllm=vllm)


def make_config(options: RunOptions, task_spec: TaskSpec, num_parameters: int, device_type: str) -> GRPOConfig:
    """Return the configuration of a run, with default settings filled in; `with_epochs_as_steps` completes it.

    A loss or an advantage of the user's own is imported and added to the table of losses or advantages.

    options: The options of the command.
    task_spec: The task, which gives the default length of completions, and the weights of its rewards.
    num_parameters: Number of parameters of the model.
    device_type: "cpu" or "cuda".
    """
    settings = options.settings
    for name in user_formulas.FORMULA_TABLES:
        if user_formulas.is_user_formula(settings.get(name)):  # typed, since a file may not name code
            user_formulas.register_user_formula(name, settings[name])
    for name, setting in STEP_SETTING_OF_OPTION.items():
        if name in options.explicit and setting in options.explicit:
            raise InputError(name, options.explicit[name], f"leave it out, or {setting}")
    defaults = default_settings(num_parameters, task_spec.task, device_type, settings)
    return GRPOConfig(**(settings | defaults | {"reward_weights": task_spec.reward_weights}))


def with_epochs_as_steps(config: GRPOConfig, options: RunOptions, num_rows: int) -> GRPOConfig:
    """Return the configuration with `num_train_epochs` and `warmup_ratio` converted to numbers of steps.

    An epoch has as many steps as there are whole batches of prompts in the rows, as in TRL, and at least one step.

    num_rows: Number of problems to train on.

    Raises:
        InputError: for one of the two out of its range, or a `warmup_ratio` with a schedule without warm-up.
    """
    if (epochs := options.num_train_epochs) is not None:
        check_value(COMMAND_OPTIONS["num_train_epochs"], epochs)
        config = replace(config, max_steps=math.ceil(epochs * max(1, num_rows // config.prompts_per_step)))
    if (ratio := options.warmup_ratio) is not None:
        check_value(COMMAND_OPTIONS["warmup_ratio"], ratio)
        if ratio and (reasons := reasons_unread(SETTINGS["warmup_steps"], vars(config), SETTINGS)):
            raise InputError("warmup_ratio", ratio, f"leave it out: nothing reads it with {' and '.join(reasons)}")
        config = replace(config, warmup_steps=math.ceil(ratio * config.max_steps))
    return config
