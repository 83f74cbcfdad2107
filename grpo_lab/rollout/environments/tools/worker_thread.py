"""A thread that runs the code of tools and of an environment object, so that a hanging call can be given up.

All code of an environment object, from its constructor to `get_reward`, runs in one thread and one event loop.
Connections to databases and sessions on a network need this.
"""

import asyncio
import inspect
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

POLL_SECONDS = 1.0  # longest wait before Ctrl-C is noticed; also the time that a call gets beyond its limit


class WorkerThread:
    """A thread that runs the calls of one episode, one after the other, and may hold its environment object."""

    def __init__(self):
        self.environment_object: Any = None  # the environment of the episode, if a factory makes one
        self.is_lost = False  # True once a call has not returned in time. A thread cannot be ended, so it is given up.
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=_run_calls, args=(self._calls,), daemon=True, name="grpo_lab tool").start()
        weakref.finalize(self, self._calls.put, None)

    def start(self, function: Callable, arguments: Any = None, limit: float | None = None) -> Future:
        """Put a call at the end of the queue; return the future of its result. A coroutine is run to its end.

        Args:
            function: The function to call.
            arguments: Its keyword arguments, a dict; anything else makes the call fail with TypeError. None: no
                arguments.
            limit: Limit of a coroutine in seconds; None sets no limit.
        """
        future: Future = Future()
        self._calls.put((future, function, {} if arguments is None else arguments, limit))
        return future

    def result(self, future: Future, limit: float | None = None) -> Any:
        """Wait for a call; return its result, or raise its exception.

        Raises:
            TimeoutError: if the call has not returned within `limit` seconds. The thread then counts as lost.
        """
        waited = 0.0
        while True:
            timeout = POLL_SECONDS if limit is None else min(POLL_SECONDS, limit + POLL_SECONDS - waited)
            try:
                return future.result(timeout=timeout)
            except FutureTimeoutError:
                if future.done():  # the call ended just now, or raised TimeoutError itself
                    return future.result()
                waited += timeout
                if limit is not None and waited >= limit + POLL_SECONDS:
                    self.is_lost = True
                    raise TimeoutError(f"no answer within {limit:g} seconds") from None

    def run(self, function: Callable, arguments: dict | None = None) -> Any:
        """Call a function in the thread, and wait for its result without a limit."""
        return self.result(self.start(function, arguments))


def _run_calls(calls: queue.SimpleQueue) -> None:
    """Run the calls of a queue in their order, until the queue has None."""
    loop = None
    while (call := calls.get()) is not None:
        future, function, arguments, limit = call
        try:
            value = function(**arguments)
            if inspect.isawaitable(value):
                loop = loop or asyncio.new_event_loop()
                value = loop.run_until_complete(_with_limit(value, limit))
            future.set_result(value)
        except BaseException as error:  # also SystemExit: it would end the thread while the caller waits
            future.set_exception(error)
        del call, future, function, arguments
    if loop is not None:
        loop.close()


async def _with_limit(awaitable: Any, limit: float | None) -> Any:
    try:
        return await asyncio.wait_for(awaitable, limit)
    except TimeoutError as error:
        if limit is None or str(error):  # the call raised it itself
            raise
        raise TimeoutError(f"no answer within {limit:g} seconds") from error
