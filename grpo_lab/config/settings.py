"""The settings of a run in one dataclass, `GRPOConfig`; the names are TRL's, so that a configuration carries over.

Each setting is declared once, with its default, its help text, its range, and the settings that make it matter.
Settings of losses are declared in `objective/losses.py`, the others here. A setting that is on and differs from its
default, but that the chosen loss, advantage or option does not read, is refused with an error that names it.

A run derives two things from its settings: the learning rate of each step, and the `SamplingParams` of its sampler.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from grpo_lab.advantages import ADVANTAGES, SCALES
from grpo_lab.base.checks import InputError, check_at_least, check_choice, check_positive, combine_errors
from grpo_lab.base.option import (
    NamedCode,
    changed_values,
    check_type,
    check_unused,
    check_value,
    option,
    option_specs,
    unused_options,
)
from grpo_lab.config.precision import PRECISIONS, dtype_name
from grpo_lab.kl import ESTIMATORS
from grpo_lab.objective import IMPORTANCE_SAMPLING_LEVELS, LOSSES, LossSettings

# The default, in `--help`, of a setting for which a command chooses a value by `config/defaults.py`.
BY_MODEL_SIZE = "by the model's size"
MAX_SEED = 2**32 - 1  # limit of numpy, and therefore of `set_seed` in transformers
TOOL_TIMEOUT = 30.0  # seconds; time limit of a call of a tool, unless the setting or an environment object has another
# The trackers of accelerate; each name is also the name of the package that pip installs.
TRACKERS = ("aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "tensorboard", "trackio", "wandb")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings of the run, its evaluation, its rollouts and its rewards, and the choice of its loss."""

    output_dir: str | None = option(
        None,
        "folder for checkpoints and metrics (none: nothing is kept)",
        group="the run",
        may_change_on_resume=True,
        named_code=NamedCode.PATH,
    )
    seed: int = option(0, "seed of all random numbers of the run", at_least=0, at_most=MAX_SEED)
    max_steps: int = option(
        100, "number of steps, each one batch of rollouts with all its updates", at_least=0, may_change_on_resume=True
    )
    save_steps: int = option(
        50, "number of steps between checkpoints (0: only at the end)",
        at_least=0, read_if={"output_dir": True}, may_change_on_resume=True,
    )  # fmt: skip
    save_total_limit: int | None = option(
        2,
        "number of checkpoints that are kept (none: all)",
        at_least=1,
        read_if={"output_dir": True},
        may_change_on_resume=True,
    )
    resume_from_checkpoint: bool = option(
        False, "whether to go on from the last good checkpoint in output_dir", may_change_on_resume=True
    )
    ignore_reward_changes: bool = option(
        False, "whether to resume with rewards that have changed since the beginning, or cannot be compared",
        read_if={"resume_from_checkpoint": True}, may_change_on_resume=True,
    )  # fmt: skip

    disable_tqdm: bool = option(
        False, "whether to hide the progress bar", group="what it shows", may_change_on_resume=True
    )
    report_to: str | list[str] = option(
        "none", "trackers that receive the metrics in addition to metrics.jsonl, such as tensorboard,wandb",
        choices=("none", *TRACKERS), read_if={"output_dir": True}, may_change_on_resume=True,
    )  # fmt: skip
    logging_steps: int = option(
        10, "number of steps between printed completions; the last step is always shown",
        at_least=1, read_if={"log_completions": True}, may_change_on_resume=True,
    )  # fmt: skip
    log_completions: bool = option(
        False,
        "whether to print the best and the worst completion, and write all to completions.jsonl",
        may_change_on_resume=True,
    )
    log_kl: bool = option(False, "whether to measure the KL to the initial model even if beta is 0")

    eval_steps: int | None = option(
        None,
        "number of steps between evaluations; one follows the last step (none: no evaluation)",
        group="evaluation",
        at_least=1,
        may_change_on_resume=True,
    )
    num_generations_eval: int | None = option(
        None,
        "completions per prompt in an evaluation (none: num_generations)",
        at_least=1,
        read_if={"eval_steps": True},
    )
    per_device_eval_batch_size: int | None = option(
        None, "completions at a time in an evaluation (none: as in training)", at_least=1, read_if={"eval_steps": True}
    )

    num_generations: int = option(
        16, "G, number of completions per prompt", group="sampling", at_least=1, default_text=BY_MODEL_SIZE
    )
    generation_batch_size: int = option(
        256, "B = P*G, number of completions per step", at_least=1, default_text=BY_MODEL_SIZE
    )
    max_completion_length: int = option(
        64, "largest number of tokens of a completion", at_least=1, default_text="the task's"
    )
    temperature: float = option(1.0, "temperature of sampling, by which logits are divided", above=0)
    top_k: int = option(0, "number of most probable tokens among which each token is sampled (0: all)", at_least=0)
    top_p: float = option(
        1.0,
        "probability mass of the most probable tokens among which each token is sampled (1: all)",
        above=0,
        at_most=1,
    )
    repetition_penalty: float = option(
        1.0, "penalty on the logits of tokens that have occurred already (1: none)", above=0
    )
    max_tool_calling_iterations: int | None = option(
        None, "largest number of turns of the environment in an episode (none: as many as fit)", at_least=1
    )
    tool_timeout: float | None = option(
        None,
        f"time limit of a call of a tool, in seconds (none: {TOOL_TIMEOUT:g}, or an environment's own)",
        above=0,
    )

    reward_weights: list[float] | None = option(
        None, "weights of the reward functions in their sum (none: 1 each)", group="rewards and advantages"
    )
    advantage: str = option(
        "group",
        'estimator of advantages ("none": the reward itself; turn, state and gigpo: one advantage per turn, '
        "docs/agents.md), or FILE:function, your own (docs/own-task.md)",
        choices=ADVANTAGES,
        named_code=NamedCode.FORMULA,
    )
    scale_rewards: str = option(
        "group", "standard deviation that divides the advantages: of the group, of the batch, or none", choices=SCALES
    )
    mask_truncated_completions: bool = option(
        False, "whether to leave completions that hit the length limit out of the loss"
    )

    loss_type: str = option(
        "dapo",
        "loss, or FILE:function, your own (docs/own-task.md)",
        group="objective",
        choices=LOSSES,
        named_code=NamedCode.FORMULA,
        aliases=("loss",),
    )
    importance_sampling_level: str = option(
        "token",
        "level of the importance ratio: one per token, or one per sequence",
        choices=IMPORTANCE_SAMPLING_LEVELS,
        read_if={"use_bias_correction_kl": True},
    )


class Schedule(NamedTuple):
    """An entry of `SCHEDULES`: the learning rate after the warm-up, and whether there is a warm-up.

    Args:
        share_of_peak: Function that returns the learning rate as a share of the peak. Its argument is the progress
            after the warm-up, from 0 to 1.
        reads: The names of the settings that the schedule reads. Without "warmup_steps" it has no warm-up.
    """

    share_of_peak: Callable[[float], float]
    reads: tuple[str, ...] = ("warmup_steps",)


SCHEDULES = {
    "constant": Schedule(lambda progress: 1.0, reads=()),
    "constant_with_warmup": Schedule(lambda progress: 1.0),
    "linear": Schedule(lambda progress: 1 - progress),
    "cosine": Schedule(lambda progress: (1 + math.cos(math.pi * progress)) / 2),
}


def scheduled_learning_rate(step: int, peak: float, warmup_steps: int, max_steps: int, scheduler_type: str) -> float:
    """Return the learning rate of a step: a linear warm-up to the peak, then constant, or falling to 0 at `max_steps`.

    The names of the schedules are those of transformers, where the warm-up begins one step later, with a rate of 0.

    Args:
        step: Index of the step, counted from 0; the rate of step 0 is peak / warmup_steps.
        peak: The largest learning rate.
        warmup_steps: Number of steps of the warm-up.
        max_steps: Number of steps of the run.
        scheduler_type: Name of the schedule, a key of `SCHEDULES`.
    """
    check_choice("scheduler_type", scheduler_type, SCHEDULES)
    schedule = SCHEDULES[scheduler_type]
    if "warmup_steps" in schedule.reads and step < warmup_steps:
        return peak * (step + 1) / warmup_steps  # [warmup]
    progress = (step - warmup_steps) / max(max_steps - warmup_steps, 1)
    return peak * schedule.share_of_peak(progress)


# `--help` shows the fields in the order RunSettings, LossSettings, GRPOConfig.
@dataclass(frozen=True, kw_only=True)
class GRPOConfig(LossSettings, RunSettings):
    """The settings of one run. A *step* is one batch of rollouts and all updates that are made from it.

    TRL counts updates instead of steps: to move a configuration to TRL, multiply every number of steps by
    `updates_per_step`. Other differences under the same name are listed in docs/commands.md.

    The dataclass is frozen: `dataclasses.replace(config, beta=0.04)` returns a changed copy.

    Raises:
        InputError: for all settings of a wrong type or out of their range, or else for the first one that does not fit
            the others or is set but not read.
    """

    beta: float = option(0.0, "coefficient of the KL term (0: none)", group="objective", at_least=0)
    kl_estimator: str = option(
        "k3", "estimator of the KL term", choices=ESTIMATORS, read_if={"beta": True, "log_kl": True}
    )
    use_bias_correction_kl: bool = option(
        False,
        "whether to weight the KL term by the importance ratio, for rollouts of an older policy",
        read_if={"beta": True},
    )
    entropy_coef: float = option(0.0, "coefficient of the entropy bonus (0: none)")
    ref_model_sync_steps: int | None = option(
        None,
        "number of steps between refreshes of the reference model (none: never)",
        at_least=1,
        read_if={"beta": True},
    )
    ref_model_device: str | None = option(
        None,
        'device of the reference model, such as "cpu" to save GPU memory (none: as the policy)',
        read_if={"beta": True, "log_kl": True},
        named_code=NamedCode.NOTHING,
    )

    learning_rate: float = option(
        2e-4, "peak learning rate of AdamW", group="optimisation", at_least=0, default_text=BY_MODEL_SIZE
    )
    lr_scheduler_type: str = option(
        "constant_with_warmup",
        'schedule of the learning rate ("constant": no warm-up)',
        choices=SCHEDULES,
        named_code=NamedCode.NOTHING,
    )
    warmup_steps: int = option(5, "number of steps in which the learning rate rises to its peak", at_least=0)
    weight_decay: float = option(0.0, "weight decay of AdamW, on every parameter", at_least=0)
    adam_beta1: float = option(0.9, "decay rate of AdamW's mean of gradients", at_least=0, below=1)
    adam_beta2: float = option(0.999, "decay rate of AdamW's mean of squared gradients", at_least=0, below=1)
    max_grad_norm: float = option(
        1.0, "largest norm of the gradient, beyond which it is scaled down (inf: never)", above=0, at_most=math.inf
    )
    num_iterations: int = option(1, "mu, number of passes over each batch of rollouts", at_least=1)
    per_device_train_batch_size: int | None = option(
        None,
        "completions per micro-batch (none: the completions of a step divided by gradient_accumulation_steps)",
        at_least=1,
        default_text=BY_MODEL_SIZE,
    )
    gradient_accumulation_steps: int = option(
        1, "number of micro-batches whose gradients are summed in one update", at_least=1, default_text=BY_MODEL_SIZE
    )
    gradient_checkpointing: bool = option(
        False, "whether to recompute activations in the backward pass, which saves memory", default_text=BY_MODEL_SIZE
    )
    precision: str | None = option(
        None, "precision of weights and computation (none: as bf16, fp16 and the model say)", choices=tuple(PRECISIONS)
    )
    bf16: bool = option(False, 'TRL\'s name for precision "fp32-master"')
    fp16: bool = option(False, 'TRL\'s name for precision "fp16"')
    max_nonfinite_steps: int = option(
        3,
        "number of updates in a row with a loss or gradient that is not finite, such as NaN, after which the run ends",
        at_least=1,
    )

    def __post_init__(self):
        # One error names all settings of a wrong type, or else all that are out of their range.
        for check in (check_type, check_value):
            errors = []
            for name, spec in SETTINGS.items():
                try:
                    check(spec, getattr(self, name))
                except InputError as error:
                    errors.append(error)
            if errors:
                raise combine_errors(errors)
        folder = self.output_dir
        fits = folder is None or (folder.strip() and not Path(folder).is_file())
        _require(fits, "output_dir", folder, "expected the name of a folder, or None")
        _check_sizes(self)
        flags = [flag for flag in ("bf16", "fp16") if getattr(self, flag)]
        _require(len(flags) < 2, "bf16", True, "expected at most one of bf16 and fp16")
        if self.precision and flags:
            precision = PRECISIONS[self.precision]
            fits = flags[0] == dtype_name(precision.autocast or precision.weights)
            _require(fits, flags[0], True, f"expected False with precision = {self.precision!r}")
        check_unused(changed_values(vars(self), SETTINGS), SETTINGS)
        ADVANTAGES[self.advantage].check(self)
        LOSSES[self.loss_type].check(self)
        _require(folder or not self.resume_from_checkpoint, "output_dir", None, "expected a folder to resume")

    def as_dict(self) -> dict:
        """Return all settings by name, ready for JSON."""
        return asdict(self)

    def with_changes(self, **changes) -> "GRPOConfig":
        """Return a copy with these changes, in which settings that are no longer read have their defaults again.

        Raises:
            InputError: for a change that nothing reads, as `GRPOConfig` does.
        """
        settings = self.as_dict() | changes
        while unused := dict(unused_options(changed_values(settings, SETTINGS), SETTINGS)).keys() - changes.keys():
            settings |= {name: SETTINGS[name].default for name in unused}
        return GRPOConfig(**settings)

    @property
    def requested_precision(self) -> str | None:
        """The precision named by the setting `precision` or by one of TRL's flags; None if the model decides."""
        if self.precision:
            return self.precision
        if self.bf16:
            return "fp32-master"
        return "fp16" if self.fp16 else None

    @property
    def microbatch_size(self) -> int:
        """Number of completions of a micro-batch.

        This is `per_device_train_batch_size`, or, if that is None, generation_batch_size / gradient_accumulation_steps.
        """
        default_size = max(1, self.generation_batch_size // self.gradient_accumulation_steps)
        return self.per_device_train_batch_size or default_size

    @property
    def update_batch_size(self) -> int:
        """Number of completions of one optimizer update."""
        return self.microbatch_size * self.gradient_accumulation_steps

    @property
    def updates_per_step(self) -> int:
        return self.generation_batch_size // self.update_batch_size * self.num_iterations

    @property
    def prompts_per_step(self) -> int:
        return self.generation_batch_size // self.num_generations

    @property
    def trackers(self) -> tuple[str, ...]:
        """The names of the trackers in `report_to`, each once."""
        names = [self.report_to] if isinstance(self.report_to, str) else self.report_to
        return tuple(dict.fromkeys(name for name in names if name != "none"))

    @property
    def needs_reference(self) -> bool:
        """True if the run needs a reference model, for a KL term or to log the KL."""
        return self.beta > 0 or self.log_kl

    @property
    def needs_every_row(self) -> bool:
        """True if a row with zero advantage has a gradient, from a KL term or an entropy bonus."""
        return self.beta > 0 or self.entropy_coef != 0

    def shows_completions_of(self, step: int) -> bool:
        """Return True if the completions of this step (counted from 1) are shown; those of the last step always are."""
        return self.log_completions and (step % self.logging_steps == 0 or step == self.max_steps)

    def is_evaluation_due(self, step: int) -> bool:
        """Return True if an evaluation follows this step (counted from 1): every `eval_steps`, and after the last."""
        return self.eval_steps is not None and (step % self.eval_steps == 0 or step == self.max_steps)

    def loss_arguments(self) -> dict:
        """Return the keyword arguments of `policy_loss`: those of every loss, and the settings that this loss reads."""
        keywords = {
            "loss_type": self.loss_type,
            "importance_sampling_level": self.importance_sampling_level,
            "beta": self.beta,
            "kl_estimator": self.kl_estimator,
            "kl_bias_correction": self.use_bias_correction_kl,
            "max_completion_length": self.max_completion_length,
        }
        return keywords | {name: getattr(self, name) for name in LOSSES[self.loss_type].reads}

    def sampling_params(self) -> "SamplingParams":
        """Return the settings of the sampler, which an environment and `sample_rollout` take."""
        return SamplingParams(
            self.num_generations,
            self.max_completion_length,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            repetition_penalty=self.repetition_penalty,
        )


SETTINGS = option_specs(GRPOConfig)
# The settings that may change when a run is resumed. The folder of the run checks a new `max_steps` by itself, since it
# changes the learning rates of a falling schedule.
MAY_CHANGE_ON_RESUME = tuple(name for name, spec in SETTINGS.items() if spec.may_change_on_resume)


def without_default_tool_timeout(settings: dict) -> dict:
    """Return saved settings without a `tool_timeout` of 30.0, the default before it was None."""
    return {name: value for name, value in settings.items() if (name, value) != ("tool_timeout", TOOL_TIMEOUT)}


@dataclass(frozen=True)
class SamplingParams:
    """The settings of a sampler; `GRPOConfig.sampling_params` makes those of a run.

    Raises:
        InputError: if a setting is out of its range.
    """

    num_generations: int  # G, number of completions or episodes of each prompt
    max_completion_length: int  # maximum number of tokens of a completion, or of an episode including the replies
    temperature: float = 1.0
    top_k: int = 0  # number of most likely tokens to draw from; 0 draws from all
    top_p: float = 1.0  # total probability of the most likely tokens to draw from; 1 draws from all
    repetition_penalty: float = 1.0  # transformers' penalty for tokens that have occurred; 1 means no penalty
    # "dynamic" samples by transformers' `generate`, whatever the model. None: by a faster sampler where there is one.
    cache_implementation: str | None = None

    def __post_init__(self):
        check_at_least("num_generations", self.num_generations, 1)
        check_at_least("max_completion_length", self.max_completion_length, 1)
        check_choice("cache_implementation", self.cache_implementation, (None, "dynamic"))
        check_positive("temperature", self.temperature)
        check_at_least("top_k", self.top_k, 0)
        if not 0 < self.top_p <= 1:
            raise InputError("top_p", self.top_p, "it must be positive and at most 1")
        check_positive("repetition_penalty", self.repetition_penalty)


def _check_sizes(config: GRPOConfig) -> None:
    """Raise InputError unless the batch can be divided into groups, updates and micro-batches."""
    G = config.num_generations
    batch = config.generation_batch_size
    update = config.update_batch_size
    smallest = ADVANTAGES[config.advantage].min_group_size
    _require(smallest <= G, "num_generations", G, f"it must be at least {smallest} with advantage {config.advantage!r}")
    _require(batch % G == 0, "generation_batch_size", batch, f"it must be a multiple of num_generations = {G}")
    product = "per_device_train_batch_size * gradient_accumulation_steps"
    if config.per_device_train_batch_size is None:
        product, update = "gradient_accumulation_steps", config.gradient_accumulation_steps
    _require(batch % update == 0, product, update, f"it must divide generation_batch_size = {batch}")
    eval_batch, eval_group = config.per_device_eval_batch_size, config.num_generations_eval or G
    fits = eval_batch is None or eval_batch % eval_group == 0
    expected = f"it must be a multiple of the {eval_group} completions of a prompt"
    _require(fits, "per_device_eval_batch_size", eval_batch, expected)


def _require(condition: Any, name: str, value: Any, expected: str) -> None:
    """Raise InputError for the setting `name` unless the condition holds."""
    if not condition:
        raise InputError(name, value, expected)
