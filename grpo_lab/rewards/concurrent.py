"""Reward functions that are coroutines (`async def`): those of a batch run concurrently.

Such functions typically wait for a server, for example for a judge or a sandbox.
"""

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any

from grpo_lab.rewards.functions import innermost_function


def is_async(function: Callable) -> bool:
    """Return True for an `async def`, for an object whose `__call__` is one, and for a partial of either."""
    function = innermost_function(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def start_coroutine(coroutine: Coroutine) -> Future:
    """Start a coroutine in the background and return its future.

    All coroutines of a process run on one event loop, since many clients of servers can only be used on one loop.
    """
    return asyncio.run_coroutine_threadsafe(coroutine, _background_loop())


class PendingRewards(Sequence):
    """The rewards of a function that may still be running, as a sequence that waits for them when it is read.

    Args:
        wait_for_rewards: A function that waits for the rewards and returns them, or raises the error of the reward
            function. It is called once, when the sequence is first read.
    """

    def __init__(self, wait_for_rewards: Callable[[], list[float]]):
        self._rewards = functools.cache(wait_for_rewards)

    def __len__(self) -> int:
        return len(self._rewards())

    def __getitem__(self, index: Any) -> Any:
        return self._rewards()[index]


@functools.cache
def _background_loop() -> asyncio.AbstractEventLoop:
    """Start an event loop in a separate thread; the loop of a notebook is busy with the cell that waits."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="grpo_lab rewards").start()
    return loop
