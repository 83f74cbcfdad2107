"""While a function is checked, the library does not have it: calling it there is no answer.

Whoever imported the reference holds the function object, so its code is exchanged inside the object.
"""

import inspect
from collections.abc import Callable
from types import CodeType, FunctionType

from grpo_lab.course.exercise import Exercise
from grpo_lab.course.stub import LIBRARY_GONE


class Withheld:
    """Between `take` and `give_back`, these references raise what they raise where work is marked."""

    def __init__(self, *exercises: Exercise):
        references = [inspect.unwrap(exercise.function) for exercise in exercises]
        self._kept = [(r, r.__code__, _gone(r)) for r in references if not r.__code__.co_freevars]

    def take(self) -> None:
        for reference, _, gone in self._kept:
            reference.__code__ = gone

    def give_back(self) -> None:
        for reference, code, _ in self._kept:
            reference.__code__ = code


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
    exec(f"{head}\n    raise NotImplementedError({LIBRARY_GONE + ': ' + reference.__name__!r})", names)
    return names["gone"].__code__
