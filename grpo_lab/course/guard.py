"""Run a student's code and come back from an endless loop, a flood of print and `sys.exit`.

The clock is one of processor time, where the system has it. What sleeps, waits for somebody to type, or works inside a
C function, is for the interrupt of the notebook to stop; `os._exit` and a crash take the process along. The grader has
a process of its own for each submission, and a clock outside of it.
"""

import io
import signal
import threading
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
    """Only the main thread is stopped, and not on Windows."""
    if not hasattr(signal, "SIGPROF") or threading.current_thread() is not threading.main_thread():
        yield
        return
    running = True

    def ring(*_) -> None:
        if running:
            ran.fault = "endless"
            raise Stop

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.05)
    try:
        yield
    finally:
        running = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
