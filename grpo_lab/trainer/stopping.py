"""Ctrl-C and SIGTERM: the step at hand is finished and saved; a second signal stops at once.

In a notebook the button that interrupts the kernel sends the same signal as Ctrl-C.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from grpo_lab.commands import Stopped, shell_line

SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
COMMAND = "grpo_lab.train"


class Stopping:
    """A context that notes the first signal and lets the second through. Outside the main thread it does nothing.

    saved: says what is on the disk at that moment; None where nothing is to be.
    """

    def __init__(self, saved: Callable[[], str] | None):
        self.saved, self.number, self._before = saved, None, {}

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                # Not where the signal is ignored on purpose (nohup), or handled by something that is not Python.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *details):
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def asked(self) -> bool:
        return self.number is not None

    def stop(self, where: str) -> None:
        """Raise Stopped: by which signal, where the run stands, what is saved."""
        if self.saved is None:
            after = "Nothing is saved (output_dir is None); the model has the weights of this moment."
        else:
            after = f"{self.saved()} Go on with {how_to_go_on()}."
        raise Stopped(f"Stopped {where} by {SIGNALS[self.number]}. {after}", 128 + self.number)

    def _note(self, number: int, frame) -> None:
        if self.asked:
            self.number = signal.Signals(number)
            self.stop("at once, in the midst of a step,")
        self.number = signal.Signals(number)
        with contextlib.suppress(RuntimeError):  # the signal came while something was being printed
            print(f"\n{SIGNALS[number]}: finishing this step; once more, and it stops at once", file=sys.stderr)


def how_to_go_on() -> str:
    """The command that resumes, where a command runs; else the setting."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or spec.name.removesuffix(".__main__") != COMMAND:
        return "resume_from_checkpoint=True"
    words = _without_option(sys.argv[1:], "--resume_from_checkpoint")
    words = ["python", "-m", COMMAND, *words, "--resume_from_checkpoint", "true"]
    return f"`{shell_line(words)}`"


def _without_option(words: list[str], option: str) -> list[str]:
    kept, skip = [], False
    for word in words:
        if skip or word.startswith(f"{option}="):
            skip = False
        elif word == option:
            skip = True
        else:
            kept.append(word)
    return kept


def what_is_saved(folder: Path, newest: str | None) -> str:
    return "No checkpoint is saved yet." if newest is None else f"{(folder / newest).as_posix()!r} is saved."
