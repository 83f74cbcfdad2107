"""Run a student's code in a thread of this process, and come back whatever it does, on every system.

A loop in Python is stopped by an exception that the interpreter raises in the thread; nothing can stop a loop inside a
C function from here, so such a thread is left behind and reported. `os._exit` and a crash of the interpreter take the
process along: the grader therefore runs submissions in a process of their own.
"""

import builtins
import ctypes
import io
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

FLOOD, SHOWN = 100_000, 1_500  # characters that stop the function, and those that are shown
_GRACE, _STACK = 2.0, 16 * 2**20
_PATIENCE = 4  # times the seconds that are allowed, for a thread that waits for its turn, or sleeps
_raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc


class Stop(BaseException):
    """Raised in a thread whose time is up, by `print` when too much was printed, and by `input`."""


@dataclass
class Ran:
    """result is None, and fault one of "endless", "hang", "flood", "exit", "input", unless the call came to its end."""

    result: Any = None
    fault: str = ""
    printed: str = ""


def guarded(call: Callable[[], Any], seconds: float) -> Ran:
    """Run `call()` for at most so many seconds, and longer only where the machine is busy.

    An ordinary exception that it does not catch is raised here.
    """
    result, error = None, None

    def work() -> None:
        nonlocal result, error
        try:
            result = call()
        except BaseException as raised:
            error = raised

    thread = threading.Thread(target=work, daemon=True, name="exercise")
    with _outside_world(thread) as output:
        try:
            _start(thread)
            _wait(thread, seconds)
            endless = thread.is_alive()
            hangs = endless and not _stop(thread)
        except BaseException:  # the notebook was interrupted: the function has to stop too
            _stop(thread)
            raise
    fault = "hang" if hangs else output.fault or ("endless" if endless else "")
    if not fault and isinstance(error, SystemExit | KeyboardInterrupt | GeneratorExit):
        fault = "exit"
    if error is not None and not fault:
        raise error
    return Ran(None if fault else result, fault, output.text())


def _start(thread: threading.Thread) -> None:
    before = threading.stack_size(_STACK)  # macOS gives a thread too little for Python's own recursion limit
    try:
        thread.start()
    finally:
        threading.stack_size(before)


def _wait(thread: threading.Thread, seconds: float) -> None:
    """Until it ends, or its time is up: on a busy machine it may take longer, unless it got its share of the processor.

    In short steps, since on some systems an interrupt of the notebook is noticed only between two of them.
    """
    start, worked = time.monotonic(), time.process_time()
    while thread.is_alive():
        taken = time.monotonic() - start
        if taken >= seconds and (time.process_time() - worked >= seconds or taken >= _PATIENCE * seconds):
            return
        thread.join(min(max(seconds - taken, 0.01), 0.1))


def _stop(thread: threading.Thread) -> bool:
    """Raise Stop in the thread, again and again in case it catches it. False if it goes on all the same."""
    for _ in range(int(_GRACE / 0.05)):
        if thread.ident is None or not thread.is_alive():
            return True
        _raise_in_thread(ctypes.c_ulong(thread.ident), ctypes.py_object(Stop))
        thread.join(0.05)
    return not thread.is_alive()


class _Output(io.TextIOBase):
    """Takes what one thread prints, up to a limit; what other threads print goes where it would have gone."""

    def __init__(self, thread: threading.Thread, original):
        self.thread, self.original, self.kept, self.length, self.fault = thread, original, [], 0, ""

    def write(self, text: str) -> int:
        if threading.current_thread() is not self.thread:
            return self.original.write(text)
        if self.length < SHOWN:
            self.kept.append(text[: SHOWN - self.length])
        self.length += len(text)
        if self.length > FLOOD:
            self.fault = "flood"
            raise Stop
        return len(text)

    def flush(self) -> None:
        if threading.current_thread() is not self.thread:
            self.original.flush()

    def refuse_input(self, *args, **kwargs):
        self.fault = "input"
        raise Stop

    def text(self) -> str:
        more = f"\n… and {self.length - SHOWN} more characters" if self.length > SHOWN else ""
        return "".join(self.kept) + more


@contextmanager
def _outside_world(thread: threading.Thread):
    """Catch what is printed; `input` and the `exit()` of a notebook raise, instead of waiting or ending the kernel."""
    output = _Output(thread, sys.stdout)
    ipython = sys.modules.get("IPython")
    out, err, ask, shell = sys.stdout, sys.stderr, builtins.input, ipython.get_ipython() if ipython else None
    sys.stdout = sys.stderr = output
    builtins.input = output.refuse_input
    if shell is not None:
        shell.ask_exit = _exit_of_a_notebook
    try:
        yield output
    finally:
        sys.stdout, sys.stderr, builtins.input = out, err, ask
        if shell is not None:
            del shell.ask_exit


def _exit_of_a_notebook(*args, **kwargs):
    raise SystemExit
