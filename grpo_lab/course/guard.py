"""Run a student's code and come back from an endless loop, a flood of print, `input` and `exit`.

The clock is one of processor time, where the system has it. What sleeps, or works inside a C function, is for the
interrupt of the notebook to stop; `os._exit` and a crash take the process along. The grader has a process of its own
for each submission, and a clock outside of it.
"""

import builtins
import io
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

FLOOD, SHOWN = 100_000, 1_500  # characters that stop the function, and those that are shown


class Stop(BaseException):
    """Raised where the time is up, by `print` when too much was printed, and by `input` and `exit`."""


@dataclass
class Ran:
    """result is None, and fault one of "endless", "flood", "exit", "input", unless the call came to its end."""

    result: Any = None
    fault: str = ""
    printed: str = ""


def guarded(call: Callable[[], Any], seconds: float) -> Ran:
    """Run `call()` for at most so many seconds of processor time. An ordinary exception of its own is raised here."""
    output, result = _Output(), None
    with redirect_stdout(output), redirect_stderr(output), _no_input_and_no_exit(output), _clock(output, seconds):
        try:
            result = call()
        except Stop:
            pass
        except (SystemExit, GeneratorExit):
            output.fault = output.fault or "exit"
        finally:
            output.over = True
    return Ran(None if output.fault else result, output.fault, output.text())


class _Output(io.TextIOBase):
    """Takes what is printed, up to a limit, and keeps why the function was stopped: one that catches that goes on."""

    def __init__(self):
        self.kept, self.length, self.fault, self.over = [], 0, "", False

    def stop(self, fault: str) -> None:
        if not self.over:
            self.fault = self.fault or fault
            raise Stop

    def write(self, text: str) -> int:
        if self.length < SHOWN:
            self.kept.append(text[: SHOWN - self.length])
        self.length += len(text)
        if self.length > FLOOD:
            self.stop("flood")
        return len(text)

    def text(self) -> str:
        more = f"\n… and {self.length - SHOWN} more characters" if self.length > SHOWN else ""
        return "".join(self.kept) + more


@contextmanager
def _clock(output: _Output, seconds: float) -> Iterator[None]:
    """Stops again and again, in case the function catches it. Only the main thread is stopped, and not on Windows."""
    if not hasattr(signal, "SIGPROF") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGPROF, lambda *_: output.stop("endless"))
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.05)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def _no_input_and_no_exit(output: _Output) -> Iterator[None]:
    """They raise, instead of waiting for somebody and ending the kernel."""
    ipython = sys.modules.get("IPython")
    ask, shell = builtins.input, ipython.get_ipython() if ipython else None
    builtins.input = lambda *_, **__: output.stop("input")
    if shell is not None:
        shell.ask_exit = lambda *_, **__: output.stop("exit")
    try:
        yield
    finally:
        builtins.input = ask
        if shell is not None:
            del shell.ask_exit
