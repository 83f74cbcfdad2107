"""Settings to start from, by the size of the model, the task and the device: what `train` and `memory` take alike.

`GRPOConfig`'s own defaults are those for the tiny model. A larger model has smaller ones here: above a billion
parameters, TRL's own default learning rate. They are places to start from and were not tuned. Batches
are cut so that the activations of a half-billion model fit a card of 8 GB.
"""

from dataclasses import dataclass

from grpo_lab.display import text_table

SETTINGS = (
    "learning_rate", "num_generations", "generation_batch_size", "per_device_train_batch_size",
    "gradient_accumulation_steps", "gradient_checkpointing", "max_completion_length",
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    """What models of one size begin with."""

    below: int | float  # so many parameters
    about: str
    learning_rate: float
    num_generations: int
    generation_batch_size: int
    rows_at_once: dict[str, int] | None  # by type of device; None: all of an update
    gradient_checkpointing: bool


TABLE_SAYS = """\
rows at once: per_device_train_batch_size; gradient_accumulation_steps makes one update of the whole batch.
max_completion_length is the task's. What was chosen is printed before the run."""
TINY = 10_000_000
SIZES = (
    Size(TINY, "below 10 million", 2e-4, 16, 256, None, False),
    Size(3e8, "to 300 million", 1e-5, 8, 64, {"cuda": 16, "cpu": 8}, False),
    Size(1e9, "to a billion", 2e-6, 8, 64, {"cuda": 8, "cpu": 4}, True),
    Size(float("inf"), "larger", 1e-6, 8, 64, {"cuda": 4, "cpu": 2}, True),
)


def size_of(parameters: int) -> Size:
    """The row of `SIZES` that a model of so many parameters belongs to."""
    return next(size for size in SIZES if parameters < size.below)


def default_settings(parameters: int, task, device_type: str, given: dict | None = None) -> dict:
    """The settings to start from; the rest are `GRPOConfig`'s defaults.

    Args:
        parameters: of the model, tied ones once.
        task: one of `grpo_lab.tasks.TASKS`, which knows how long its completions are.
        device_type: "cuda" or "cpu".
        given: settings that are chosen already, and what follows from them: the batch is a multiple of the completions
            of a prompt; micro-batches divide the batch, and are left alone where one of their two numbers is given.

    Returns:
        Names and values of the settings in `SETTINGS`, without those that are given.
    """
    size, given = size_of(parameters), given or {}
    settings = {name: getattr(size, name) for name in SETTINGS if hasattr(size, name)}
    settings["max_completion_length"] = task.completion_length(small=parameters < TINY)
    group = max(1, given.get("num_generations", size.num_generations))
    settings["generation_batch_size"] = max(1, size.generation_batch_size // group) * group
    batch = given.get("generation_batch_size", settings["generation_batch_size"])
    if size.rows_at_once and not given.keys() & {"per_device_train_batch_size", "gradient_accumulation_steps"}:
        most = size.rows_at_once["cuda" if device_type == "cuda" else "cpu"]
        rows = max((rows for rows in range(1, most + 1) if batch % rows == 0), default=1)
        settings |= {"per_device_train_batch_size": rows, "gradient_accumulation_steps": max(1, batch // rows)}
    return {name: settings[name] for name in SETTINGS if name in settings and name not in given}


def described(settings: dict, parameters: int) -> str:
    """What was chosen and for which size, in a line or two."""
    values = ", ".join(f"{name} {as_typed(value)}" for name, value in settings.items())
    return f"chosen for {parameters / 1e6:,.1f} million parameters: {values or 'nothing; all of it is given'}"


def table() -> str:
    """The defaults of every size, for the help of a command."""
    names = SETTINGS[:3]
    rows = [[name, *(as_typed(getattr(size, name)) for size in SIZES)] for name in names]
    at_once = [size.rows_at_once or {"cuda": "all", "cpu": "all"} for size in SIZES]
    for kind, words in (("cuda", "rows at once on a card"), ("cpu", "rows at once on a CPU")):
        rows.append([words, *(str(rows[kind]) for rows in at_once)])
    rows.append(["gradient_checkpointing", *(str(size.gradient_checkpointing).lower() for size in SIZES)])
    head = ["by the model's parameters", *(size.about for size in SIZES)]
    return f"{text_table(head, rows)}\n\n{TABLE_SAYS}"


def as_typed(value) -> str:
    """A value as one types it in a command line."""
    return f"{value:g}" if isinstance(value, float) else str(value) if isinstance(value, str) else str(value).lower()
