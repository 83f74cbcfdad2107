"""Rewards that are coroutines (`async def`): all of a batch wait at the same time, for judges or sandboxes say."""

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any


def is_async(function: Callable) -> bool:
    """True for an `async def`, and for an object whose `__call__` is one."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def start(coroutine: Coroutine) -> Future:
    """Begin to run it beside the caller, on one event loop for the whole process, as clients of servers need it."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loop())


class Pending(Sequence):
    """The rewards that a function will return, as a list that waits for them when it is read.

    finish: waits, and returns the list, or raises what is to be raised.
    """

    def __init__(self, finish: Callable[[], list[float]]):
        self._finish = functools.cache(finish)

    def __len__(self) -> int:
        return len(self._finish())

    def __getitem__(self, index: Any) -> Any:
        return self._finish()[index]


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """An event loop in a thread of its own: a notebook's own loop is busy with the cell that waits."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="grpo_lab rewards").start()
    return loop
