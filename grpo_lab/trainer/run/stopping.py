"""Stopping a run by Ctrl-C or SIGTERM: the current step is finished and saved; a second signal stops at once.

In a notebook, the button that interrupts the kernel sends the same signal as Ctrl-C.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable

from grpo_lab.base import Stopped

RESUME = "resume_from_checkpoint=True (in a command: --resume_from_checkpoint and the name of this folder)"
RESUME_HINT = f"Go on with {RESUME} and everything else as it was."
SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class StopSignals:
    """Context manager that records the first Ctrl-C or SIGTERM, and raises Stopped on the second.

    Outside the main thread it does nothing, since Python delivers signals to the main thread.

    describe_saved: Function that returns a sentence about the newest checkpoint. None: the run saves nothing.
    """

    def __init__(self, describe_saved: Callable[[], str] | None):
        self._describe_saved = describe_saved
        self.last_signal: signal.Signals | None = None  # None before the first one
        self._previous_handlers: dict = {}  # the handlers before this object's, by signal

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                # Skipped if the signal is ignored on purpose (nohup), or if its handler was not installed by Python.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._previous_handlers[number] = signal.signal(number, self._handle_signal)
        return self

    def __exit__(self, *details):
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    @property
    def received(self) -> bool:
        """True once a signal was received, so that the run has to stop."""
        return self.last_signal is not None

    def raise_stopped(self, moment: str) -> None:
        """Raise Stopped; its message names the signal, the moment, such as "after step 3 of 9", and what is saved."""
        outcome = "Nothing is saved (output_dir is None); the model has the weights of this moment."
        resume_hint = None
        if self._describe_saved is not None:
            outcome, resume_hint = self._describe_saved(), RESUME_HINT
        assert self.last_signal is not None  # without a signal there is nothing to stop for
        raise Stopped(
            f"Stopped {moment} by {SIGNALS[self.last_signal]}. {outcome}", 128 + self.last_signal, resume_hint
        )

    def _handle_signal(self, number: int, frame) -> None:
        is_second = self.received
        self.last_signal = signal.Signals(number)
        if is_second:
            self.raise_stopped("at once, in the middle of a step,")
        with contextlib.suppress(RuntimeError):  # raised if the signal interrupted another print
            name = SIGNALS[self.last_signal]
            print(f"\n{name}: finishing this step; a second one stops at once", file=sys.stderr)
