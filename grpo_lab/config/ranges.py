"""What each setting of a run may be. Each check names the setting, what it is and what is expected."""

import types
import typing
from dataclasses import fields
from pathlib import Path

import torch

from grpo_lab.checks import check_at_least, check_between, check_choice, check_finite, check_positive, check_sampling
from grpo_lab.kl import ESTIMATORS
from grpo_lab.objective import LEVELS, LOSS_TYPES
from grpo_lab.objective.table import LOSSES, SMALLEST_LAMBDA, clipped
from grpo_lab.precision import PRECISIONS, short_name

ADVANTAGES = ("group", "rloo", "best_of_group", "none")
SCHEDULES = ("constant", "constant_with_warmup", "linear", "cosine")
LARGEST_SEED = 2**32 - 1  # numpy's limit, and so that of transformers' `set_seed`

CHOICES = {
    "report_to": ("none", "tensorboard", "wandb"),
    "cache_implementation": (None, "dynamic", "static"),
    "advantage": ADVANTAGES,
    "scale_rewards": ("group", "batch", "none"),
    "loss_type": LOSS_TYPES,
    "importance_sampling_level": LEVELS,
    "kl_estimator": ESTIMATORS,
    "lr_scheduler_type": SCHEDULES,
    "precision": (None, *PRECISIONS),
}
AT_LEAST = {
    0: ("max_steps", "save_steps", "beta", "warmup_steps", "weight_decay", "learning_rate", "epsilon_high",
        "num_completions_to_print", "early_stopping_threshold", "vespo_k_pos", "vespo_k_neg"),
    SMALLEST_LAMBDA: ("vespo_lambda_pos", "vespo_lambda_neg"),
    1: ("generation_batch_size", "max_completion_length", "ref_model_sync_steps", "num_iterations",
        "per_device_train_batch_size", "gradient_accumulation_steps", "max_nonfinite_steps", "logging_steps",
        "eval_steps", "num_generations_eval", "per_device_eval_batch_size", "early_stopping_patience",
        "save_total_limit"),
}  # fmt: skip
BETWEEN = {"seed": (0, LARGEST_SEED), "epsilon": (0, 1)}


def check_types(config) -> None:
    """Raise TypeError for the first setting that is not of its type; an int is a float, a bool is neither."""
    for field in fields(config):
        value, kinds = getattr(config, field.name), options(field.type)
        accepted = [typing.get_origin(kind) or kind for kind in kinds]
        accepted += [int] if float in accepted else []
        if not isinstance(value, tuple(accepted)) or (isinstance(value, bool) and bool not in accepted):
            names = " or ".join("None" if kind is types.NoneType else kind.__name__ for kind in kinds)
            raise TypeError(f"{field.name} is {value!r}; expected {names}")


def check_values(config) -> None:
    """Raise ValueError for the first setting that is out of its range, whatever the others are."""
    if config.output_dir is not None and not config.output_dir.strip():
        raise ValueError(f"output_dir is {config.output_dir!r}; expected the name of a folder, or None")
    if config.output_dir is not None and Path(config.output_dir).is_file():
        raise ValueError(
            f"output_dir is {config.output_dir!r}, which is a file; expected the name of a folder, or None"
        )
    for name, choices in CHOICES.items():
        check_choice(name, getattr(config, name), choices)
    for field in fields(config):
        if isinstance(value := getattr(config, field.name), int | float) and field.name != "max_grad_norm":
            check_finite(field.name, value)
    for least, names in AT_LEAST.items():
        for name in names:
            if getattr(config, name) is not None:
                check_at_least(name, getattr(config, name), least)
    for name, bounds in BETWEEN.items():
        check_between(name, getattr(config, name), *bounds)
    for name in ("max_grad_norm", "sapo_temperature_pos", "sapo_temperature_neg"):
        check_positive(name, getattr(config, name))
    check_sampling(config.temperature, config.top_k, config.top_p, config.repetition_penalty)
    for name in ("adam_beta1", "adam_beta2"):
        if not 0 <= getattr(config, name) < 1:
            raise ValueError(f"{name} is {getattr(config, name)}; it must be at least 0 and less than 1")
    _check_weights(config.reward_weights)
    _check_device(config.ref_model_device)


def check_sizes(config) -> None:
    """Raise ValueError for a batch that cannot be cut as the settings say."""
    least = 1 if config.advantage == "none" else 2
    whole, update = config.generation_batch_size, config.update_batch_size
    if config.num_generations < least:
        raise ValueError(
            f"num_generations is {config.num_generations}; it must be at least {least} with "
            f"advantage {config.advantage!r}"
        )
    if whole % config.num_generations:
        raise ValueError(
            f"generation_batch_size is {whole}; it must be a multiple of num_generations = {config.num_generations}"
        )
    if whole % update:
        raise ValueError(
            f"per_device_train_batch_size * gradient_accumulation_steps is {update}; "
            f"it must divide generation_batch_size = {whole}"
        )
    rows, group = config.per_device_eval_batch_size, config.num_generations_eval or config.num_generations
    if rows is not None and rows % group:
        raise ValueError(
            f"per_device_eval_batch_size is {rows}; it must be a multiple of the {group} completions of a prompt"
        )


def check_what_goes_together(config) -> None:
    """Raise ValueError for settings of which one needs another, or rules it out."""
    _check_precision(config)
    _check_delta(config)
    for name, off in (("resume_from_checkpoint", False), ("report_to", "none"), ("load_best_model_at_end", False)):
        if config.output_dir is None and getattr(config, name) != off:
            raise ValueError(f"output_dir is None; expected a folder with {name} = {getattr(config, name)!r}")
    for name, off in (("load_best_model_at_end", False), ("early_stopping_patience", None)):
        if config.eval_steps is None and getattr(config, name) != off:
            raise ValueError(f"eval_steps is None; expected a number of steps with {name} = {getattr(config, name)!r}")
    if config.ref_model_sync_steps is not None and config.beta == 0:
        raise ValueError(f"ref_model_sync_steps is {config.ref_model_sync_steps}; expected None with beta = 0")


def _check_precision(config) -> None:
    if config.bf16 and config.fp16:
        raise ValueError("bf16 and fp16 are both True; expected at most one of them")
    if config.precision is not None:
        mode = PRECISIONS[config.precision]
        half = short_name(mode.autocast or mode.weights)
        for flag in ("bf16", "fp16"):
            if getattr(config, flag) and flag != half:
                raise ValueError(f"{flag} is True; expected False with precision = {config.precision!r}")


def _check_delta(config) -> None:
    """As `clipped_surrogate` would after the first rollout; the losses that do not read it take any above 1."""
    high = config.epsilon if config.epsilon_high is None else config.epsilon_high
    high = high if LOSSES[config.loss_type].surrogate is clipped else 0.0
    if config.delta is not None and not config.delta > 1 + high:
        raise ValueError(f"delta is {config.delta}; it must be greater than 1 + epsilon_high = {1 + high}")


def _check_weights(weights) -> None:
    for weight in weights or []:
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise TypeError(f"reward_weights is {weights}; expected numbers, and not {weight!r}")
        check_finite("reward_weights", weight)
    if weights == []:
        raise ValueError("reward_weights is []; expected a number for each reward function, or None")


def _check_device(name) -> None:
    try:
        usable = name is None or torch.device(name).type != "meta"
    except RuntimeError:
        usable = False
    if not usable:
        raise ValueError(f"ref_model_device is {name!r}; expected a device of torch, such as 'cpu' or 'cuda:1'")


def options(annotation) -> tuple:
    """The types that an annotation such as `int | None` allows."""
    return typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
