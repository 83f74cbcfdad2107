"""What the settings of a run may be together. Each check names the setting, what it is and what is expected."""

from pathlib import Path

from grpo_lab.advantages import ADVANTAGES
from grpo_lab.commands.checks import InputError
from grpo_lab.commands.setting import call, check_range, check_read, check_type
from grpo_lab.config.precision import PRECISIONS, short_name
from grpo_lab.objective.table import LOSSES


def check_settings(config, settings) -> None:
    """Raise InputError, or InputTypeError, for the first setting that is not as it must be.

    settings: the fields of the configuration, by name.
    """
    for check in (check_type, check_range):
        for name, each in settings.items():
            check(each, getattr(config, name))
    folder = config.output_dir
    fits = folder is None or (folder.strip() and not Path(folder).is_file())
    _check(fits, "output_dir", folder, "expected the name of a folder, or None")
    _check_sizes(config)
    _check_precision(config)
    check_read(config, settings)
    call(LOSSES[config.loss_type].check, vars(config))
    _check(config.output_dir or not config.resume_from_checkpoint, "output_dir", None, "expected a folder to resume")


def _check_sizes(config) -> None:
    """A batch has to be cut as the settings say."""
    G, whole, update = config.num_generations, config.generation_batch_size, config.update_batch_size
    least = ADVANTAGES[config.advantage].least
    _check(least <= G, "num_generations", G, f"it must be at least {least} with advantage {config.advantage!r}")
    _check(whole % G == 0, "generation_batch_size", whole, f"it must be a multiple of num_generations = {G}")
    product = "per_device_train_batch_size * gradient_accumulation_steps"
    if config.per_device_train_batch_size is None:
        product, update = "gradient_accumulation_steps", config.gradient_accumulation_steps
    _check(whole % update == 0, product, update, f"it must divide generation_batch_size = {whole}")
    rows, group = config.per_device_eval_batch_size, config.num_generations_eval or G
    fits = rows is None or rows % group == 0
    _check(fits, "per_device_eval_batch_size", rows, f"it must be a multiple of the {group} completions of a prompt")


def _check_precision(config) -> None:
    if config.bf16 and config.fp16:
        raise InputError("bf16", True, "expected at most one of bf16 and fp16")
    if config.precision is not None:
        mode = PRECISIONS[config.precision]
        half = short_name(mode.autocast or mode.weights)
        for flag in ("bf16", "fp16"):
            fits = not getattr(config, flag) or flag == half
            _check(fits, flag, True, f"expected False with precision = {config.precision!r}")


def _check(fits, name: str, value, allowed: str) -> None:
    if not fits:
        raise InputError(name, value, allowed)
