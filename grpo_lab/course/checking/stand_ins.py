"""Put functions of one's own in place of the references, everywhere in grpo_lab, for the length of a block.

A function imported by name is an attribute of every module that imported it, and it may be an entry of a table or the
default of an argument; all of these are exchanged. A module that is imported within the block gets the function too,
and gives it back as the others do.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from grpo_lab.commands.language import _
from grpo_lab.course.checking.run_case import signature_fault
from grpo_lab.course.checking.shown import count
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.exercises import earlier
from grpo_lab.course.exercises import exercise as find_exercise
from grpo_lab.course.stub import LIBRARY_GONE, stub_head

_blocks: list["using"] = []  # that are active, the inner ones last
_installed: dict[Callable, Callable] = {}  # reference -> what stands in its place now


class using:
    """`with using(kl_estimate=mine) as report:` trains with your function.

    Blocks may be nested; the inner one counts. The references come back at the end of the block, whatever happens
    in it. `report.calls` counts the calls of each function, and the report prints as a sentence.

    Args:
        functions: by the name of the function of grpo_lab that they stand in for.

    Raises:
        ValueError: naming a function that no exercise has, or whose arguments differ from the reference's.
    """

    def __init__(self, **functions: Callable):
        self.calls = dict.fromkeys(functions, 0)
        self.stand_ins = {_reference(name, mine): self._counted(name, mine) for name, mine in functions.items()}

    def __enter__(self) -> "using":
        _blocks.append(self)
        _install(_blocks)
        return self

    def __exit__(self, *error) -> None:
        _blocks.remove(self)
        _install(_blocks)

    def __repr__(self) -> str:
        if not self.calls:
            return _("no function of yours was used")
        return "\n".join(_(f"your {name} was called {count(calls, 'time')}") for name, calls in self.calls.items())

    def _counted(self, name: str, function: Callable) -> Callable:
        @functools.wraps(function)
        def stand_in(*args, **kwargs):
            self.calls[name] += 1
            return function(*args, **kwargs)

        return stand_in


@contextmanager
def suspended() -> Iterator[None]:
    """Within the block the references are in place, as if no `using` were active."""
    _install([])
    try:
        yield
    finally:
        _install(_blocks)


@contextmanager
def neighbours(function: Callable, exercise: Exercise) -> Iterator[None]:
    """Within the block, earlier exercises that the function may call are the library's functions.

    So a function is judged for itself: `policy_loss` wants a ratio and a surrogate, and theirs may be a stub, or wrong.
    """
    seen = getattr(function, "__globals__", None)
    seen = seen if isinstance(seen, dict) else {}
    before = {name: seen[name] for name in earlier(exercise.name) if name in seen}
    seen.update({name: find_exercise(name).function for name in before})
    try:
        yield
    finally:
        seen.update(before)


@contextmanager
def without_body(exercise: Exercise) -> Iterator[None]:
    """Within the block the library's function of this exercise raises, by whatever way it is called.

    So a check agrees with the grading, where its body is missing.
    """
    library: FunctionType = inspect.unwrap(exercise.function)
    made: dict[str, FunctionType] = {}
    exec(f"{stub_head(exercise)}    raise NotImplementedError({LIBRARY_GONE!r})\n", library.__globals__, made)
    library.__code__, body = made[exercise.name].__code__, library.__code__
    try:
        yield
    finally:
        library.__code__ = body


def _reference(name: str, function: Callable) -> Callable:
    """The function of that exercise, if this one can stand in for it."""
    try:
        exercise = find_exercise(name)
    except KeyError as error:
        raise ValueError(f"using({name}=...): {error.args[0]}") from None
    if fault := signature_fault(function, exercise):
        raise ValueError(f"using({name}=...): {fault}")
    return exercise.function


def _install(blocks: list[using]) -> None:
    """Put back all references, then the functions of these blocks in their places."""
    _exchange({id(stand_in): reference for reference, stand_in in _installed.items()})
    _installed.clear()
    for block in blocks:
        _installed.update(block.stand_ins)
    _exchange({id(reference): stand_in for reference, stand_in in _installed.items()})


def _exchange(new: dict[int, Callable]) -> None:
    for place in _places() if new else ():
        for name, value in list(place.items()):
            if id(value) in new:
                place[name] = new[id(value)]


def _places() -> Iterator[dict[str, Any]]:
    """Where functions of grpo_lab are kept: names of modules, tables in them, and defaults of keyword arguments.

    The course is left out: it keeps its references.
    """
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "grpo_lab" and not name.startswith("grpo_lab.course") and module is not None:
            yield vars(module)
            for value in list(vars(module).values()):
                if isinstance(value, dict):
                    yield value
                elif isinstance(value, FunctionType) and (defaults := inspect.unwrap(value).__kwdefaults__):
                    yield defaults
