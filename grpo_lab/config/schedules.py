"""The learning rate of each step: the schedules, each an entry, and what they have in common, the warm-up."""

import math
from collections.abc import Callable
from typing import NamedTuple

from grpo_lab.base.checks import check_choice


class Schedule(NamedTuple):
    """An entry of `SCHEDULES`.

    remaining: the share of the peak rate, as a function of the share of the steps after the warm-up that are done.
    """

    remaining: Callable[[float], float]
    warms_up: bool = True

    @property
    def reads(self) -> tuple[str, ...]:
        """The settings that matter to it."""
        return ("warmup_steps",) if self.warms_up else ()


SCHEDULES = {
    "constant": Schedule(lambda progress: 1.0, warms_up=False),
    "constant_with_warmup": Schedule(lambda progress: 1.0),
    "linear": Schedule(lambda progress: 1 - progress),
    "cosine": Schedule(lambda progress: (1 + math.cos(math.pi * progress)) / 2),
}


def learning_rate(step: int, peak: float, warmup_steps: int, max_steps: int, scheduler_type: str) -> float:
    """Rise linearly to the peak in `warmup_steps`, then stay there or fall, to zero at step `max_steps`.

    Steps count from 0, and the first one already learns, at peak / warmup_steps. (The names are those of transformers,
    where the warm-up comes one step later: the first update has a rate of 0.)
    """
    check_choice("scheduler_type", scheduler_type, SCHEDULES)
    schedule = SCHEDULES[scheduler_type]
    if step < warmup_steps and schedule.warms_up:
        return peak * (step + 1) / warmup_steps  # [warmup]
    progress = (step - warmup_steps) / max(max_steps - warmup_steps, 1)
    return peak * schedule.remaining(progress)
