"""Run a student's code and come back from an endless loop, a flood of print and `sys.exit`, on every system.

The clock is one of processor time. What sleeps, waits for somebody to type, or works inside a C function, is for the
interrupt of the notebook to stop; `os._exit` and a crash take the process along. The grader has a process of its own
for each submission, and a clock outside of it.
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

MAX_SHOWN, MAX_PRINTED = 1_500, 10_000_000  # characters that are shown, and after which nobody believes in an end


class Stop(BaseException):
    """An exception where time or paper is up, again and again: who catches it is stopped by the next one."""


@dataclass
class GuardedCall:
    """The end of a guarded call: result is None, and fault "endless" or "exit", unless the call came to its end."""

    result: Any = None
    fault: str = ""
    printed: str = ""


def guarded(call: Callable[[], Any], seconds: float) -> GuardedCall:
    """Run `call()` for at most so many seconds of processor time. An ordinary exception of its own is raised here."""
    outcome, output = GuardedCall(), _Output()
    with redirect_stdout(output), redirect_stderr(output), _clock(outcome, seconds):
        try:
            outcome.result = call()
        except Stop:
            pass
        except (SystemExit, GeneratorExit):
            outcome.fault = outcome.fault or "exit"
    if output.length > MAX_PRINTED:
        outcome.fault = "endless"
    ellipsis = f"\n… and {output.length - MAX_SHOWN} more characters" if output.length > MAX_SHOWN else ""
    return GuardedCall(None if outcome.fault else outcome.result, outcome.fault, output.getvalue() + ellipsis)


class _Output(io.StringIO):
    """An output that takes all that is printed, and keeps the beginning."""

    length = 0

    def write(self, text: str) -> int:
        super().write(text[: max(0, MAX_SHOWN - self.length)])
        self.length += len(text)
        if self.length > MAX_PRINTED:
            raise Stop
        return len(text)


@contextmanager
def _clock(outcome: GuardedCall, seconds: float) -> Iterator[None]:
    """Let a thread look at the clock, and send a signal to the main thread, which alone is stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    running = True
    finished = threading.Event()
    end = time.process_time() + seconds

    def watch() -> None:
        while not finished.wait(0.05):
            if time.process_time() > end:
                interrupt_main(signal.SIGTERM)  # Windows has it, too

    def ring(*_) -> None:
        if running:
            outcome.fault = "endless"
            raise Stop

    previous_handler, watcher = signal.signal(signal.SIGTERM, ring), threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        running = False
        finished.set()
        watcher.join()
        signal.signal(signal.SIGTERM, previous_handler)
