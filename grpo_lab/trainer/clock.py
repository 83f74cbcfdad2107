"""The clock of a step, which adds up the seconds of each of its phases."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch


def synchronized_time(device: torch.device) -> float:
    """Wait until the device has finished its work, since a GPU works asynchronously; return the time in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class Clock:
    """Timer of the phases of a step: `with clock(name):` adds the time spent inside to `totals[name]`.

    Phases may be nested: the time of an inner phase is not counted for the outer one. If `read` returns another
    quantity, such as a number of operations, that quantity is added up instead of seconds.

    Args:
        device: The device whose work is awaited before each reading.
        read: Function that returns the current reading. None: the time in seconds.
    """

    def __init__(self, device: torch.device, read: Callable[[], float] | None = None):
        self.read = read or partial(synchronized_time, device)
        self.totals: dict[str, float] = {}
        self._inner = 0.0  # the part spent in phases nested in the current one

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        outer, self._inner = self._inner, 0.0
        started = self.read()
        try:
            yield
        finally:
            passed = self.read() - started
            self.totals[name] = self.totals.get(name, 0.0) + passed - self._inner
            self._inner = outer + passed
