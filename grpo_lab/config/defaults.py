"""Settings to start from, by the size of the model, the task and the device: what `train` and `memory` take alike.

`GRPOConfig`'s own defaults are those for the tiny model. Those for larger ones are places to start from and were not
tuned; batches are cut so that the activations of a half-billion model fit a GPU of 8 GB.
"""

from typing import NamedTuple

BY_SIZE = (
    "learning_rate", "num_generations", "generation_batch_size", "per_device_train_batch_size",
    "gradient_accumulation_steps", "gradient_checkpointing", "max_completion_length",
)  # fmt: skip
FEW_PARAMETERS = 10_000_000  # as the tiny model has; CPU threads then wait for each other longer than they work
SHORT = 128  # tokens


class SizeDefaults(NamedTuple):
    """Settings to start from for models of fewer parameters than `below`."""

    below: float
    learning_rate: float
    num_generations: int
    generation_batch_size: int
    gradient_checkpointing: bool
    rows_on_gpu: int | None  # at once; None: all of an update
    rows_on_cpu: int | None  # twice as many if completions are short


SIZES = (
    SizeDefaults(FEW_PARAMETERS, 2e-4, 16, 256, gradient_checkpointing=False, rows_on_gpu=None, rows_on_cpu=None),
    SizeDefaults(3e8, 1e-5, 8, 64, gradient_checkpointing=False, rows_on_gpu=16, rows_on_cpu=8),
    SizeDefaults(1e9, 2e-6, 8, 64, gradient_checkpointing=True, rows_on_gpu=8, rows_on_cpu=4),
    SizeDefaults(float("inf"), 1e-6, 8, 64, gradient_checkpointing=True, rows_on_gpu=4, rows_on_cpu=2),
)


def default_settings(parameters: int, task, device_type: str, explicit: dict | None = None) -> dict:
    """The settings `BY_SIZE` to start from, without those that are explicit; the rest are `GRPOConfig`'s defaults.

    task: one of `grpo_lab.tasks.TASKS`, which knows how long its completions are.
    explicit: settings that somebody chose, from which the others follow: the batch is a multiple of the completions of
        a prompt; micro-batches divide the batch, and are left alone where one of their two numbers is explicit. Where
        both are and the batch is not, it is their product, one update, as in TRL.
    """
    explicit = explicit or {}
    size = next(size for size in SIZES if parameters < size.below)
    settings = {
        "learning_rate": size.learning_rate,
        "num_generations": size.num_generations,
        "gradient_checkpointing": size.gradient_checkpointing,
        "max_completion_length": task.completion_length(for_tiny_model=parameters < FEW_PARAMETERS),
    }
    group_size = max(1, explicit.get("num_generations", size.num_generations))
    settings["generation_batch_size"] = max(1, size.generation_batch_size // group_size) * group_size
    if explicit.get("per_device_train_batch_size") and "gradient_accumulation_steps" in explicit:
        product = explicit["per_device_train_batch_size"] * explicit["gradient_accumulation_steps"]
        settings["generation_batch_size"] = product
    batch_size = explicit.get("generation_batch_size", settings["generation_batch_size"])
    most_rows = size.rows_on_gpu if device_type == "cuda" else size.rows_on_cpu
    if most_rows is not None and not explicit.keys() & {"per_device_train_batch_size", "gradient_accumulation_steps"}:
        if device_type != "cuda" and explicit.get("max_completion_length", settings["max_completion_length"]) <= SHORT:
            most_rows *= 2  # each pass goes over all weights, which takes longer there than the few tokens do
        rows = max((rows for rows in range(1, most_rows + 1) if batch_size % rows == 0), default=1)
        settings |= {"per_device_train_batch_size": rows, "gradient_accumulation_steps": max(1, batch_size // rows)}
    return {name: settings[name] for name in BY_SIZE if name in settings and name not in explicit}


def describe_defaults(settings: dict, parameters: int) -> str:
    """Say which settings were chosen and for which size, in a line or two."""
    values = ", ".join(f"{name} {as_typed(value)}" for name, value in settings.items())
    return f"chosen for {parameters / 1e6:,.1f} million parameters: {values or 'nothing; all of it is given'}"


def as_typed(value) -> str:
    """A value as one types it in a command line."""
    return f"{value:g}" if isinstance(value, float) else str(value) if isinstance(value, str) else str(value).lower()
