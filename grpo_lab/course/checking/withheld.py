"""While a function is checked, the library does not have it: calling it there is no answer.

Whoever imported the reference holds the function object, so its code is exchanged inside the object.
"""

import inspect
from collections.abc import Callable
from types import CodeType, FunctionType

from grpo_lab.course.exercise import Exercise
from grpo_lab.course.stub import LIBRARY_GONE


class Withheld:
    """Between `take` and `give_back`, the reference raises what it raises where work is marked."""

    def __init__(self, exercise: Exercise):
        self._reference = inspect.unwrap(exercise.function)
        self._code = self._reference.__code__
        self._gone = self._code if self._code.co_freevars else _gone(self._reference)  # no exercise has a closure

    def take(self) -> None:
        self._reference.__code__ = self._gone

    def give_back(self) -> None:
        self._reference.__code__ = self._code


def copy_of(function: Callable) -> FunctionType:
    """A function that does the same, and is not the library's: for trials of the check itself."""
    bare = inspect.unwrap(function)
    made = FunctionType(bare.__code__, bare.__globals__, bare.__name__, bare.__defaults__, bare.__closure__)
    made.__kwdefaults__, made.__annotations__ = bare.__kwdefaults__, bare.__annotations__
    made.__doc__, made.__module__ = bare.__doc__, bare.__module__
    return made


def _gone(reference: FunctionType) -> CodeType:
    """The code of a function with the same arguments, whose defaults stay with the function object."""
    empty, signature = inspect.Parameter.empty, inspect.signature(reference)
    bare = [p.replace(annotation=empty, default=empty) for p in signature.parameters.values()]
    head = f"def gone{signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)}:"
    names: dict = {}
    exec(f"{head}\n    raise NotImplementedError({LIBRARY_GONE!r})", names)
    return names["gone"].__code__
