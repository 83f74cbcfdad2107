"""What each setting of a run may be. Each check names the setting, what it is and what is expected."""

import types
import typing
from dataclasses import field, fields
from pathlib import Path

from grpo_lab.commands.checks import check_choice, check_clip_range, check_finite
from grpo_lab.config.precision import PRECISIONS, short_name
from grpo_lab.objective.table import LOSSES, clipped

ADVANTAGES = ("group", "rloo", "best_of_group", "none")
SCHEDULES = ("constant", "constant_with_warmup", "linear", "cosine")
LARGEST_SEED = 2**32 - 1  # numpy's limit, and so that of transformers' `set_seed`


def setting(default, allowed: str | tuple[str, ...] = "", about: str = "", group: str = ""):
    """A field of `GRPOConfig`: its default, and what its help says.

    allowed: the interval of a number, such as "[0, 1)", or the choices for a text.
    group: the heading of the help that begins with this setting.
    """
    return field(default=default, metadata={"allowed": allowed, "about": about, "group": group})


def check_types(config) -> None:
    """Raise TypeError for the first setting that is not of its type; an int is a float, a bool is neither."""
    for each in fields(config):
        value, kinds = getattr(config, each.name), options(each.type)
        accepted = [typing.get_origin(kind) or kind for kind in kinds]
        accepted += [int] if float in accepted else []
        if not isinstance(value, tuple(accepted)) or (isinstance(value, bool) and bool not in accepted):
            names = " or ".join("None" if kind is types.NoneType else kind.__name__ for kind in kinds)
            raise TypeError(f"{each.name} is {value!r}; expected {names}")


def check_each(config) -> None:
    """Raise TypeError, or ValueError for a setting that is out of its range, whatever the others are."""
    check_types(config)
    for each in fields(config):
        value, allowed = getattr(config, each.name), each.metadata["allowed"]
        if isinstance(allowed, tuple):
            check_choice(each.name, value, (None, *allowed) if types.NoneType in options(each.type) else allowed)
        elif allowed and value is not None:
            _check_interval(each.name, value, allowed)
    folder = config.output_dir
    fits = folder is None or (folder.strip() and not Path(folder).is_file())
    _check(fits, "output_dir", repr(folder), "expected the name of a folder, or None")


def _check_sizes(config) -> None:
    """A batch has to be cut as the settings say."""
    G, whole, update = config.num_generations, config.generation_batch_size, config.update_batch_size
    least = 1 if config.advantage == "none" else 2
    _check(least <= G, "num_generations", G, f"it must be at least {least} with advantage {config.advantage!r}")
    _check(whole % G == 0, "generation_batch_size", whole, f"it must be a multiple of num_generations = {G}")
    product = "per_device_train_batch_size * gradient_accumulation_steps"
    _check(whole % update == 0, product, update, f"it must divide generation_batch_size = {whole}")
    rows, group = config.per_device_eval_batch_size, config.num_generations_eval or G
    fits = rows is None or rows % group == 0
    _check(fits, "per_device_eval_batch_size", rows, f"it must be a multiple of the {group} completions of a prompt")


def check_together(config) -> None:
    """Raise ValueError for settings of which one needs another, or rules it out."""
    _check_sizes(config)
    _check_precision(config)
    if LOSSES[config.loss_type].surrogate is clipped:  # it says so itself, after the first rollout
        check_clip_range(config.epsilon, config.epsilon_high, config.delta)
    for needed, name, off in (
        ("output_dir", "resume_from_checkpoint", False),
        ("output_dir", "report_to", "none"),
        ("output_dir", "load_best_model_at_end", False),
        ("eval_steps", "load_best_model_at_end", False),
    ):
        value = getattr(config, name)
        fits = getattr(config, needed) is not None or value == off
        _check(fits, needed, None, f"expected a value with {name} = {value!r}")
    sync = config.ref_model_sync_steps
    _check(sync is None or config.beta != 0, "ref_model_sync_steps", sync, "expected None with beta = 0")


def options(annotation) -> tuple:
    """The types that an annotation such as `int | None` allows."""
    return typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)


def _check_interval(name: str, value: int | float, interval: str) -> None:
    low, high = interval[1:-1].split(", ")
    if not interval.endswith("inf]"):
        check_finite(name, value)
    above = value >= float(low) if interval[0] == "[" else value > float(low)
    below = value <= float(high) if interval[-1] == "]" else value < float(high)
    if not (above and below):
        raise ValueError(f"{name} is {value}; it must lie in {interval}")


def _check(fits, name: str, value, said: str) -> None:
    if not fits:
        raise ValueError(f"{name} is {value}; {said}")


def _check_precision(config) -> None:
    if config.bf16 and config.fp16:
        raise ValueError("bf16 and fp16 are both True; expected at most one of them")
    if config.precision is not None:
        mode = PRECISIONS[config.precision]
        half = short_name(mode.autocast or mode.weights)
        for flag in ("bf16", "fp16"):
            fits = not getattr(config, flag) or flag == half
            _check(fits, flag, True, f"expected False with precision = {config.precision!r}")
