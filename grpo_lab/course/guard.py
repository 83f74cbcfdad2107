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

SHOWN, MOST = 1_500, 10_000_000  # characters that are shown, and after which nobody believes in an end


class Stop(BaseException):
    """Raised where time or paper is up, again and again: a function that catches it is stopped by the next one."""


@dataclass
class Ran:
    """result is None, and fault "endless" or "exit", unless the call came to its end."""

    result: Any = None
    fault: str = ""
    printed: str = ""


def guarded(call: Callable[[], Any], seconds: float) -> Ran:
    """Run `call()` for at most so many seconds of processor time. An ordinary exception of its own is raised here."""
    ran, output = Ran(), _Output()
    with redirect_stdout(output), redirect_stderr(output), _clock(ran, seconds):
        try:
            ran.result = call()
        except Stop:
            pass
        except (SystemExit, GeneratorExit):
            ran.fault = ran.fault or "exit"
    if output.length > MOST:
        ran.fault = "endless"
    more = f"\n… and {output.length - SHOWN} more characters" if output.length > SHOWN else ""
    return Ran(None if ran.fault else ran.result, ran.fault, output.getvalue() + more)


class _Output(io.StringIO):
    """Takes all that is printed, and keeps the beginning."""

    length = 0

    def write(self, text: str) -> int:
        super().write(text[: max(0, SHOWN - self.length)])
        self.length += len(text)
        if self.length > MOST:
            raise Stop
        return len(text)


@contextmanager
def _clock(ran: Ran, seconds: float) -> Iterator[None]:
    """A thread looks at the clock, and sends a signal to the main thread, which alone is stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    running, over, end = True, threading.Event(), time.process_time() + seconds

    def watch() -> None:
        while not over.wait(0.05):
            if time.process_time() > end:
                interrupt_main(signal.SIGTERM)  # Windows has it, too

    def ring(*_) -> None:
        if running:
            ran.fault = "endless"
            raise Stop

    before, watcher = signal.signal(signal.SIGTERM, ring), threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        running = False
        over.set()
        watcher.join()
        signal.signal(signal.SIGTERM, before)
