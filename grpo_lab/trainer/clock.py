"""The clock of a step: `with clock("time/score"):` adds the seconds that pass inside to those of that name."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def now(device: torch.device) -> float:
    """Seconds on the wall clock, once the device has finished what it was given: a card works behind our back."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Clock:
    """Adds up seconds under names. Inside a station another one may run; its time is its own and not the outer's."""

    def __init__(self, device: torch.device):
        self.device = device
        self.seconds: dict[str, float] = {}
        self._inner = 0.0  # seconds of the stations that ran inside the present one

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        outer, self._inner = self._inner, 0.0
        started = now(self.device)
        try:
            yield
        finally:
            passed = now(self.device) - started
            self.seconds[name] = self.seconds.get(name, 0.0) + passed - self._inner
            self._inner = outer + passed
