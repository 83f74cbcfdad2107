"""Run a student's code and return from it in spite of an endless loop, endless printing or `sys.exit`, on every system.

The limit is on CPU time, and Python code alone can be stopped. Code that sleeps, waits for input or stays inside a C
function goes on until the student interrupts the notebook. `os._exit` and a crash end the process. The grading
therefore runs each submission in its own process and measures the time from outside.
"""

import io
import signal
import threading
import time
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from grpo_lab.course.checking.status import Fault

MAX_SHOWN_LENGTH = 1_500  # characters of the printed output that are kept
MAX_PRINTED_LENGTH = 10_000_000  # characters after which a call counts as endless


class Stop(BaseException):
    """An exception that stops a call. It is raised again until the call ends, so catching it does not help the call."""


@dataclass
class GuardedCall:
    """The result of a guarded call.

    Attributes:
        result: The value that the call returned; None if the call was stopped.
        fault: The reason why the call was stopped, `ENDLESS` or `EXIT`; `NONE` if it returned.
        printed: The beginning of what the call printed.
    """

    result: Any = None
    fault: Fault = Fault.NONE
    printed: str = ""


def guarded(call: Callable[[], Any], seconds: float) -> GuardedCall:
    """Run `call()`, and stop it after this many seconds of CPU time. Ordinary exceptions of the call are passed on."""
    outcome, output = GuardedCall(), _Output()
    with redirect_stdout(output), redirect_stderr(output), _time_limit(outcome, seconds):
        try:
            outcome.result = call()
        except Stop:
            pass
        except (SystemExit, GeneratorExit):
            outcome.fault = outcome.fault or Fault.EXIT
    if output.length > MAX_PRINTED_LENGTH:
        outcome.fault = Fault.ENDLESS
    ellipsis = f"\n… and {output.length - MAX_SHOWN_LENGTH} more characters" if output.length > MAX_SHOWN_LENGTH else ""
    return GuardedCall(None if outcome.fault else outcome.result, outcome.fault, output.getvalue() + ellipsis)


class _Output(io.StringIO):
    """A text stream that keeps the beginning of what is written to it, and raises `Stop` once that is too much."""

    length = 0  # the number of all characters written so far

    def write(self, text: str) -> int:
        super().write(text[: max(0, MAX_SHOWN_LENGTH - self.length)])
        self.length += len(text)
        if self.length > MAX_PRINTED_LENGTH:
            raise Stop
        return len(text)


@contextmanager
def _time_limit(outcome: GuardedCall, seconds: float) -> Iterator[None]:
    """Raise `Stop` in the main thread once the block has used its CPU time. In any other thread there is no limit.

    A second thread watches the time and sends the main thread a signal, whose handler raises `Stop`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_running = True
    finished = threading.Event()
    end = time.process_time() + seconds

    def watch() -> None:
        while not finished.wait(0.05):
            if time.process_time() > end:
                interrupt_main(signal.SIGTERM)  # Windows has SIGTERM, too

    def stop_call(*_) -> None:
        if is_running:
            outcome.fault = Fault.ENDLESS
            raise Stop

    previous_handler = signal.signal(signal.SIGTERM, stop_call)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_running = False
        finished.set()
        watcher.join()
        signal.signal(signal.SIGTERM, previous_handler)
