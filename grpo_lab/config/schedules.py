"""The learning rate of each step: the table of schedules, and the warm-up that most of them share."""

import math
from collections.abc import Callable
from typing import NamedTuple

from grpo_lab.base.checks import check_choice


class Schedule(NamedTuple):
    """An entry of `SCHEDULES`: the learning rate after the warm-up, and whether there is a warm-up.

    Args:
        share_of_peak: Function that returns the learning rate as a share of the peak. Its argument is the progress
            after the warm-up, from 0 to 1.
        has_warmup: Whether the learning rate rises to its peak in the first steps.
    """

    share_of_peak: Callable[[float], float]
    has_warmup: bool = True

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the settings that the schedule reads."""
        return ("warmup_steps",) if self.has_warmup else ()


SCHEDULES = {
    "constant": Schedule(lambda progress: 1.0, has_warmup=False),
    "constant_with_warmup": Schedule(lambda progress: 1.0),
    "linear": Schedule(lambda progress: 1 - progress),
    "cosine": Schedule(lambda progress: (1 + math.cos(math.pi * progress)) / 2),
}


def learning_rate(step: int, peak: float, warmup_steps: int, max_steps: int, scheduler_type: str) -> float:
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
    if step < warmup_steps and schedule.has_warmup:
        return peak * (step + 1) / warmup_steps  # [warmup]
    progress = (step - warmup_steps) / max(max_steps - warmup_steps, 1)
    return peak * schedule.share_of_peak(progress)
