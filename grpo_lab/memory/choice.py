"""The ways in which a model can train on a card, best first: the one that is chosen is the first that fits.

A float32 copy of the weights learns as float32 does; bf16 weights round by chance, for 6 bytes a parameter in place of
16. Layers that are computed again in the backward pass cost about a third more time for updates and change no result,
and so do fewer rows at a time. So what rounds comes after what does not, and what is slower after what is not.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from typing import Any

from grpo_lab.commands.display import GIB, text_table
from grpo_lab.config.precision import PRECISIONS

RESERVE = 3 * GIB // 4  # bytes, for CUDA itself, and for what the allocator cannot join
MODES = {True: ("fp32-master", "bf16"), False: ("fp16",)}  # for a card with bf16 in hardware, and for one without


@dataclass(frozen=True)
class Way:
    """One way to train, by the `MemoryPlan` of it."""

    plan: Any

    @property
    def precision(self) -> str:
        return self.plan.setting.mode.name

    @property
    def gradient_checkpointing(self) -> bool:
        return self.plan.setting.config.gradient_checkpointing

    @property
    def rows(self) -> int:
        """At a time."""
        return self.plan.setting.rows

    def __str__(self) -> str:
        layers = "layers computed again" if self.gradient_checkpointing else "all activations kept"
        return f"{self.precision}, {layers}, {self.rows} rows at a time"


def ways(planned, modes: tuple[str, ...], given: Container[str] = ()) -> Iterator[Way]:
    """Best first: each mode with its activations kept, then computed again; the last one with fewer rows at a time.

    given: settings that stay as they are.
    """
    asked, rows = planned.setting.config.gradient_checkpointing, planned.setting.rows
    checkpointing = (asked,) if "gradient_checkpointing" in given else (False, True)
    for mode in modes:
        for again in checkpointing:
            yield _way(planned, mode, again, rows)
    while rows > 1 and not {"per_device_train_batch_size", "gradient_accumulation_steps"} & set(given):
        rows = next(rows // k for k in range(2, rows + 1) if rows % k == 0)
        yield _way(planned, modes[-1], checkpointing[-1], rows)


def choice(planned, budget: int, modes: tuple[str, ...], given: Container[str] = ()) -> tuple[Way, list[str]]:
    """The first way that fits into so many bytes (the last one if none does); and what to say of it and the others."""
    every = list(ways(planned, modes, given))
    fitting = [way for way in every if way.plan.fits(budget)]
    if fitting and fitting[0].rows == planned.setting.rows:  # fewer rows at a time are not needed
        every = [way for way in every if way.rows == planned.setting.rows]
    rows = [[str(way), f"{way.plan.peak / GIB:.2f}", "fits" if way.plan.fits(budget) else "-"] for way in every]
    head = f"in {budget / GIB:.2f} GiB, {RESERVE / GIB:.2f} of them for CUDA itself"
    lines = text_table(["ways to train, best first", "GiB", head], rows).splitlines()
    if fitting:
        return fitting[0], [*lines, f"chosen: {fitting[0]}, the first that fits"]
    config = planned.setting.config
    smaller = f"max_completion_length below {config.max_completion_length}, "
    smaller += f"generation_batch_size below {config.generation_batch_size}"
    smaller += ", ref_model_device cpu" * (config.needs_reference and config.ref_model_device is None)
    return every[-1], [*lines, f"none of them fits; what is left: {smaller}, or a smaller model"]


def _way(planned, mode: str, again: bool, rows: int) -> Way:
    config = planned.setting.config
    parts = max(1, config.update_batch_size // rows)
    cut = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": parts, "gradient_checkpointing": again}
    changed = replace(config, precision=None, bf16=False, fp16=False, **cut)
    return Way(planned.with_setting(config=changed, mode=PRECISIONS[mode]))
