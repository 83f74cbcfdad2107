"""Default settings by the size of the model, the task and the device, for the commands `train` and `memory`.

The defaults of `GRPOConfig` are meant for the tiny model. The defaults for larger models are starting points and were
not tuned. Their micro-batches are so small that the activations of a model of half a billion parameters fit on a GPU
with 8 GB.
"""

from typing import NamedTuple

from grpo_lab.base.commands import as_option_text

SIZE_DEPENDENT_SETTINGS = (
    "learning_rate", "num_generations", "generation_batch_size", "per_device_train_batch_size",
    "gradient_accumulation_steps", "gradient_checkpointing", "max_completion_length",
)  # fmt: skip
# The settings that divide the completions of a batch into updates and micro-batches. Each is chosen to fit the other.
MICROBATCH_SETTINGS = ("per_device_train_batch_size", "gradient_accumulation_steps")
TINY_BELOW = 10_000_000  # number of parameters below which a model counts as tiny
SHORT_COMPLETION_TOKENS = 128  # a completion of at most this many tokens counts as short


class SizeDefaults(NamedTuple):
    """Default settings for models with fewer than `parameters_below` parameters."""

    parameters_below: float
    learning_rate: float
    num_generations: int
    generation_batch_size: int
    gradient_checkpointing: bool
    max_microbatch_on_gpu: int | None  # largest number of completions in a micro-batch on a GPU; None: no limit
    max_microbatch_on_cpu: int | None  # the same on a CPU; doubled if completions are short


# The columns are the fields of `SizeDefaults`, in their order.
SIZES = (
    SizeDefaults(TINY_BELOW, 2e-4, 16, 256, False, None, None),
    SizeDefaults(3e8, 1e-5, 8, 64, False, 16, 8),
    SizeDefaults(1e9, 2e-6, 8, 64, True, 8, 4),
    SizeDefaults(float("inf"), 1e-6, 8, 64, True, 4, 2),
)


def is_tiny(num_parameters: int) -> bool:
    """Return True for a number of parameters that makes a model tiny, such as that of the model "tiny".

    A tiny model has its own prompts, completion lengths and defaults, and runs on one CPU thread: several threads would
    wait for each other longer than they compute.
    """
    return num_parameters < TINY_BELOW


def default_settings(num_parameters: int, task, device_type: str, explicit: dict | None = None) -> dict:
    """Return the defaults of `SIZE_DEPENDENT_SETTINGS` that are not explicit; others keep the defaults of `GRPOConfig`.

    The defaults fit the explicit settings:

    - The batch is a multiple of the number of completions per prompt.
    - The size of a micro-batch divides the batch. If `per_device_train_batch_size` or `gradient_accumulation_steps` is
      explicit, the other one is not set here. If both are explicit and the batch is not, the batch is their product,
      one update, as in TRL.

    Args:
        num_parameters: Number of parameters of the model.
        task: An entry of `grpo_lab.tasks.TASKS`, which gives the length of its completions.
        device_type: Type of the device, such as "cuda" or "cpu".
        explicit: Settings that the user has chosen, by name. None: no settings.
    """
    explicit = explicit or {}
    size = next(size for size in SIZES if num_parameters < size.parameters_below)
    settings = {
        "learning_rate": size.learning_rate,
        "num_generations": size.num_generations,
        "gradient_checkpointing": size.gradient_checkpointing,
        "max_completion_length": task.completion_length(for_tiny_model=is_tiny(num_parameters)),
    }
    group_size = max(1, explicit.get("num_generations", size.num_generations))
    settings["generation_batch_size"] = max(1, size.generation_batch_size // group_size) * group_size
    if explicit.get("per_device_train_batch_size") and "gradient_accumulation_steps" in explicit:
        product = explicit["per_device_train_batch_size"] * explicit["gradient_accumulation_steps"]
        settings["generation_batch_size"] = product
    batch_size = explicit.get("generation_batch_size", settings["generation_batch_size"])
    max_microbatch = size.max_microbatch_on_gpu if device_type == "cuda" else size.max_microbatch_on_cpu
    if max_microbatch is not None and not explicit.keys() & set(MICROBATCH_SETTINGS):
        completion_length = explicit.get("max_completion_length", settings["max_completion_length"])
        if device_type != "cuda" and completion_length <= SHORT_COMPLETION_TOKENS:
            max_microbatch *= 2  # on a CPU, reading all weights in each pass takes longer than computing a few tokens
        microbatch_size = max((n for n in range(1, max_microbatch + 1) if batch_size % n == 0), default=1)
        settings["per_device_train_batch_size"] = microbatch_size
        settings["gradient_accumulation_steps"] = max(1, batch_size // microbatch_size)
    return {name: settings[name] for name in SIZE_DEPENDENT_SETTINGS if name in settings and name not in explicit}


def describe_defaults(settings: dict, num_parameters: int) -> str:
    """Return a sentence with the default settings that were chosen and the size of the model."""
    values = ", ".join(f"{name} {as_option_text(value)}" for name, value in settings.items())
    return f"chosen for {num_parameters / 1e6:,.1f} million parameters: {values or 'nothing; all of it is given'}"
