"""Run a function and record the value of every anchored statement, without changing its source.

The interpreter reports each line that it reaches (`sys.settrace`). When it leaves an anchored statement, the variables
that the statement has assigned are copied. Functions called by the traced function are not traced.
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
    """Record the values of anchored statements while `function` runs in the context.

    Yields:
        {tag: values}, with one value for each time that the statement has run.
    """
    recorder = _ValueRecorder(inspect.unwrap(function).__code__, equations)
    previous_trace = sys.gettrace()  # a debugger or a coverage tool may have set one
    sys.settrace(recorder.on_call)
    try:
        yield recorder.values
    finally:
        sys.settrace(previous_trace)


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
                self._record(self.pending, arg)
            self._leave(frame, at_end=True)
            self.frame = None
        return self.on_event

    def _leave(self, frame, at_end: bool = False) -> None:
        """Record what the pending statement has assigned, if the interpreter has left it.

        The value of a `return` is recorded later, in `on_event`, since the end of a `with` may run before the return.
        """
        equation = self.pending
        if equation is None or not equation.names:
            return
        if not at_end and equation.lineno <= frame.f_lineno <= equation.end_lineno:
            return
        assigned = tuple(frame.f_locals[name] for name in equation.names)
        self._record(equation, assigned if len(assigned) > 1 else assigned[0])

    def _record(self, equation: Equation, value) -> None:
        self.values.setdefault(equation.tag, []).append(_copy(value))
        self.pending = None


def _copy(value):
    """Return a copy that is not affected if later lines change tensors in place."""
    if isinstance(value, tuple | list):
        return type(value)(map(_copy, value))
    return value.detach().clone() if isinstance(value, Tensor) else value
