"""Put functions of one's own in place of the references, everywhere in grpo_lab, for the length of a block.

A function imported by name is an attribute of every module that imported it, and it may be an entry of a table or the
default of an argument; all of these are exchanged. A module that is imported within the block gets the function too,
and gives it back as the others do.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FunctionType, ModuleType
from typing import Any

from grpo_lab.course.checking.signature import signature_fault
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.exercises import exercise as find_exercise
from grpo_lab.course.stub import is_stub

_active: list["Using"] = []


class NotWritten(NotImplementedError):
    """A function that stands in for a reference has no body yet."""


class using:
    """`with using(kl_estimate=mine) as report:` trains with your function.

    Blocks may be nested; the inner one counts. The references come back at the end of the block, whatever happens
    in it. `report.calls` counts the calls of each function, and the report prints as a sentence.

    Args:
        functions: by the name of the function of grpo_lab that they stand in for.

    Raises:
        ValueError: naming a function that no exercise has, or whose arguments differ from the reference's.
        NotWritten: inside the block, when a function that is still a stub is called.
    """

    def __init__(self, **functions: Callable):
        self.calls = dict.fromkeys(functions, 0)
        self._functions = {_exercise(name, function): function for name, function in functions.items()}

    def __enter__(self) -> "using":
        self._stand_ins = {e.name: (_reference(e), self._counted(e, f)) for e, f in self._functions.items()}
        _active.append(self)
        self._put()
        return self

    def __exit__(self, *error) -> None:
        _active.remove(self)
        self._take_back()

    def __repr__(self) -> str:
        if not self.calls:
            return "no function of yours was used"
        return "\n".join(f"your {name} was called {_times(count)}" for name, count in self.calls.items())

    def _put(self) -> None:
        new = {id(reference): stand_in for reference, stand_in in self._stand_ins.values()}
        _exchange(new)

    def _take_back(self) -> None:
        _exchange({id(stand_in): reference for reference, stand_in in self._stand_ins.values()})

    def _counted(self, exercise: Exercise, function: Callable) -> Callable:
        name = exercise.name

        @functools.wraps(function)
        def stand_in(*args, **kwargs):
            self.calls[name] += 1
            try:
                return function(*args, **kwargs)
            except NotWritten:
                raise
            except NotImplementedError:
                text = f"{name} is not written yet: leave it out of using(...) and the reference is used"
                raise NotWritten(text) from None

        return stand_in


@contextmanager
def suspended() -> Iterator[None]:
    """Within the block the references are in place, as if no `using` were active."""
    blocks = list(_active)
    for block in reversed(blocks):
        block._take_back()
    try:
        yield
    finally:
        for block in blocks:
            block._put()


@contextmanager
def lent(function: Callable, also: Collection[str] = ()) -> Iterator[None]:
    """Within the block, the stubs among the names that `function` sees are the library's functions.

    A function may call its neighbours: `policy_loss` wants a ratio and a surrogate. While a neighbour is still a stub,
    the library's own function stands in for it, in `check` and in `grade`, so that one unfinished exercise does not
    block the next. A neighbour that has been written stands for itself, right or wrong, unless `also` names it.
    """
    names = getattr(function, "__globals__", None)
    seen = names if isinstance(names, dict) else {}
    blank = {
        name: value for name, value in seen.items() if (name in also or is_stub(name, value)) and value is not function
    }
    seen.update({name: find_exercise(name).function for name in blank})
    try:
        yield
    finally:
        seen.update(blank)


def called(function: Callable, names: Collection[str]) -> set[str]:
    """Those of the names that a function reads, itself or through other functions of its own notebook."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting: list[Any] = [function]
    while waiting:
        one = waiting.pop()
        if type(one) is not FunctionType or id(one) in seen or one.__globals__ is not function.__globals__:
            continue
        seen.add(id(one))
        read = _names_read(one.__code__)
        found |= read & set(names)
        waiting += [one.__globals__[name] for name in read if name in one.__globals__]
        with suppress(ValueError):  # a closure that is not filled yet
            waiting += [cell.cell_contents for cell in one.__closure__ or ()]
    return found


def _names_read(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(_names_read(part) for part in code.co_consts if isinstance(part, CodeType)))


def _exercise(name: str, function: Callable) -> Exercise:
    try:
        exercise = find_exercise(name)
    except KeyError as error:
        raise ValueError(f"using({name}=...): {error.args[0]}") from None
    if fault := signature_fault(function, exercise):
        raise ValueError(f"using({name}=...): {fault}")
    return exercise


def _reference(exercise: Exercise) -> Callable:
    """What stands in the place of the reference now: itself, or what an outer block has put there."""
    for block in reversed(_active):
        if exercise.name in block._stand_ins:
            return block._stand_ins[exercise.name][1]
    return exercise.function


def _exchange(new: dict[int, Callable]) -> None:
    for place in _places():
        for name, value in list(place.items()):
            if id(value) in new:
                place[name] = new[id(value)]


def _places() -> Iterator[dict[str, Any]]:
    """Where functions are kept: names of modules, tables in them, and defaults of keyword arguments."""
    for module in _our_modules():
        yield vars(module)
        for value in list(vars(module).values()):
            if isinstance(value, dict):
                yield value
            elif isinstance(value, FunctionType) and (defaults := inspect.unwrap(value).__kwdefaults__):
                yield defaults


def _our_modules() -> list[ModuleType]:
    """Those whose functions call each other; the course keeps its references."""
    names = [
        name for name in sys.modules if name.split(".")[0] == "grpo_lab" and not name.startswith("grpo_lab.course")
    ]
    return [sys.modules[name] for name in names if isinstance(sys.modules.get(name), ModuleType)]


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count:,} times")
