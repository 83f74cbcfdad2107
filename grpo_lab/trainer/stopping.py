"""Ctrl-C and SIGTERM: the step at hand is finished and saved; a second signal stops at once.

In a notebook the button that interrupts the kernel sends the same signal as Ctrl-C.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable

from grpo_lab.base import Stopped

RESUME = "resume_from_checkpoint=True (in a command: --resume_from_checkpoint and the name of this folder)"
SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class Stopping:
    """A context that records the first signal and lets the second through. Outside the main thread it does nothing.

    saved: says what is on the disk at that moment; None where nothing is to be.
    """

    def __init__(self, saved: Callable[[], str] | None):
        self.saved = saved
        self.number: signal.Signals | None = None
        self._handlers: dict = {}

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                # Not where the signal is ignored on purpose (nohup), or handled by something that is not Python.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *details):
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    @property
    def requested(self) -> bool:
        return self.number is not None

    def stop(self, moment: str) -> None:
        """Raise Stopped: by which signal, where the run stands, what is saved."""
        outcome = "Nothing is saved (output_dir is None); the model has the weights of this moment."
        go_on = None
        if self.saved is not None:
            outcome, go_on = self.saved(), f"Go on with {RESUME} and everything else as it was."
        raise Stopped(f"Stopped {moment} by {SIGNALS[self.number]}. {outcome}", 128 + self.number, go_on)

    def _note(self, number: int, frame) -> None:
        is_second, self.number = self.requested, signal.Signals(number)
        if is_second:
            self.stop("at once, in the midst of a step,")
        with contextlib.suppress(RuntimeError):  # the signal came while something was being printed
            print(f"\n{SIGNALS[number]}: finishing this step; once more, and it stops at once", file=sys.stderr)
