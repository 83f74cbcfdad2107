"""Where the code of a tool or of an environment runs: in a thread of its own, so that one that hangs has a limit.

From its constructor to `get_reward`, all that an environment does happens in one thread and one event loop, as the
connection to a database or a session on the network wants it.
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

POLL_SECONDS = 1.0  # how long a wait may keep Ctrl-C waiting; and what an asynchronous tool gets beyond its limit


class WorkerThread:
    """A thread in which the calls of one row run, one after the other; an environment may live in it.

    is_lost: whether a call has not come back in time. Nobody can end a thread, so it is left behind.
    """

    def __init__(self):
        self.environment: Any = None
        self.is_lost = False
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=_work, args=(self._calls,), daemon=True, name="grpo_lab tool").start()
        weakref.finalize(self, self._calls.put, None)

    def start(self, function: Callable, arguments: Any = None, limit: float | None = None) -> Future:
        """Begin a call, after those that have begun before it; a coroutine function runs to its end.

        arguments: by name. What is no dict is an error of the call.
        """
        future: Future = Future()
        self._calls.put((future, function, {} if arguments is None else arguments, limit))
        return future

    def result(self, future: Future, limit: float | None = None) -> Any:
        """Return or raise what a call returned or raised; after `limit` seconds TimeoutError: the thread is lost."""
        waited = 0.0
        while True:
            timeout = POLL_SECONDS if limit is None else min(POLL_SECONDS, limit + POLL_SECONDS - waited)
            try:
                return future.result(timeout=timeout)
            except FutureTimeoutError:
                if future.done():  # the call itself raised it
                    raise
                waited += timeout
                if limit is not None and waited >= limit + POLL_SECONDS:
                    self.is_lost = True
                    raise TimeoutError(f"no answer within {limit:g} seconds") from None

    def run(self, function: Callable, arguments: dict | None = None) -> Any:
        """Call a function, and wait however long it takes."""
        return self.result(self.start(function, arguments))


def _work(calls: queue.SimpleQueue) -> None:
    """Make the calls of a thread in their order, until None comes."""
    loop = None
    while (call := calls.get()) is not None:
        future, function, arguments, limit = call
        try:
            value = function(**arguments)
            if inspect.isawaitable(value):
                loop = loop or asyncio.new_event_loop()
                value = loop.run_until_complete(_within(value, limit))
            future.set_result(value)
        except BaseException as error:  # SystemExit, too, would end the thread and leave its caller waiting
            future.set_exception(error)
        del call, future, function, arguments
    if loop is not None:
        loop.close()


async def _within(awaitable: Any, limit: float | None) -> Any:
    try:
        return await asyncio.wait_for(awaitable, limit)
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"no answer within {limit:g} seconds") from error
