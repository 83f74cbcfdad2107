"""Run a function and catch the value of every anchored statement, without touching its source.

The interpreter reports each line that it reaches (`sys.settrace`). When it leaves an anchored statement, the variables
that the statement assigned are copied. Functions that the traced one calls are left alone.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from torch import Tensor

from grpo_lab.formulas.source import Equation


@contextmanager
def recording(function: Callable, equations: list[Equation]) -> Iterator[dict[str, list]]:
    """Record the values of anchored statements while `function` runs in the block: {tag: one value for each pass}."""
    recorder = _ValueRecorder(inspect.unwrap(function).__code__, equations)
    previous = sys.gettrace()  # of a debugger or a coverage tool, which is put back afterwards
    sys.settrace(recorder.on_call)
    try:
        yield recorder.values
    finally:
        sys.settrace(previous)


class _ValueRecorder:
    def __init__(self, code, equations: list[Equation]):
        self.code, self.equations = code, equations
        self.values: dict[str, list] = {}
        self.frame: FrameType | None = None
        self.pending: Equation | None = None

    def on_call(self, frame, event, arg):
        if frame.f_code is not self.code or self.frame is not None:
            return None
        self.frame = frame
        return self.on_event

    def on_event(self, frame, event, arg):
        if event == "line":
            self._leave(frame)
            entered = (e for e in self.equations if e.lineno <= frame.f_lineno <= e.end_lineno)
            self.pending = self.pending or next(entered, None)
        elif event == "exception" and not issubclass(arg[0], StopIteration):
            self.pending = None
        elif event == "return":
            if self.pending and not self.pending.names:
                self._keep(self.pending, arg)
            self._leave(frame, at_end=True)
            self.frame = None
        return self.on_event

    def _leave(self, frame, at_end: bool = False) -> None:
        """Keep what the statement under way assigned, if it is over. A `return` waits: a `with` may close between."""
        equation = self.pending
        if equation is None or not equation.names:
            return
        if not at_end and equation.lineno <= frame.f_lineno <= equation.end_lineno:
            return
        assigned = tuple(frame.f_locals[name] for name in equation.names)
        self._keep(equation, assigned if len(assigned) > 1 else assigned[0])

    def _keep(self, equation: Equation, value) -> None:
        self.values.setdefault(equation.tag, []).append(_copy(value))
        self.pending = None


def _copy(value):
    """A snapshot, since later lines may work in place."""
    if isinstance(value, tuple | list):
        return type(value)(map(_copy, value))
    return value.detach().clone() if isinstance(value, Tensor) else value
