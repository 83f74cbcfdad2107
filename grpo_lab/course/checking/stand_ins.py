"""Put functions of one's own in place of the references, everywhere in grpo_lab, for the length of a block.

A function imported by name is an attribute of every module that imported it, and it may be an entry of a table or the
default of an argument. So one function is replaced by another wherever grpo_lab keeps it, at the beginning of a block
and back at its end: a module that is imported within the block gets the function too, and gives it back as the others.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from grpo_lab.base.language import Phrase, _, counted, fill
from grpo_lab.course.checking.cells import global_names_of, unwrapped
from grpo_lab.course.checking.run_case import signature_fault
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.exercises import earlier, find_exercise
from grpo_lab.course.stub import LIBRARY_GONE, stub_head

_active: list["using"] = []  # the blocks that are open, the inner ones last


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
        # Functions of one notebook call each other by the names that they have there.
        self._own = [
            (_globals_of(mine), mine, self.stand_ins[_reference(name, mine)]) for name, mine in functions.items()
        ]

    def __enter__(self) -> "using":
        for reference, stand_in in self.stand_ins.items():
            _replace_everywhere(_in_force(reference), stand_in)
        for namespace, mine, stand_in in self._own:
            _replace_in(namespace, mine, stand_in)
        _active.append(self)
        return self

    def __exit__(self, *error) -> None:
        _active.remove(self)
        for namespace, mine, stand_in in self._own:
            _replace_in(namespace, stand_in, mine)
        for reference, stand_in in self.stand_ins.items():
            _replace_everywhere(stand_in, _in_force(reference))

    def __repr__(self) -> str:
        if not self.calls:
            return _("no function of yours was used")
        return "\n".join(_(self._row(name, calls)) for name, calls in self.calls.items())

    def _row(self, name: str, calls: int) -> Phrase:
        """Say how often a function was called; of one that was not, why: another one of yours does without it, or all.

        The library's functions say which other one calls it.
        """
        if calls:
            return fill("your {0} was called {1}", name, counted(calls, "time"))
        for caller, caller_calls in self.calls.items():
            if caller_calls and _names(find_exercise(caller).function, name):
                return fill(
                    "your {0} was not called: your {1} does without it, and the library's calls it", name, caller
                )
        return fill("your {0} was not called: what ran here does not need it", name)

    def _counted(self, name: str, function: Callable) -> Callable:
        @functools.wraps(function)
        def stand_in(*args, **kwargs):
            self.calls[name] += 1
            return function(*args, **kwargs)

        return stand_in


@contextmanager
def suspended() -> Iterator[None]:
    """Put the references back for the length of a block, as if no `using` were active."""
    blocks = _active[:]
    for block in reversed(blocks):
        block.__exit__()
    try:
        yield
    finally:
        for block in blocks:
            block.__enter__()


@contextmanager
def neighbours(function: Callable, exercise: Exercise) -> Iterator[tuple[str, ...]]:
    """Lend a function the library's versions of earlier exercises, which it may call, for the length of a block.

    So a function is judged for itself: `policy_loss` wants a ratio and a surrogate, and theirs may be a stub, or wrong,
    or in a cell that has not run since the kernel started. The grading lends all of them, too.

    Yields:
        The names of those that the function needs and that its namespace does not have: called outside of this block,
        it raises NameError.
    """
    namespace = getattr(unwrapped(function), "__globals__", None)
    namespace = namespace if isinstance(namespace, dict) else {}
    names = earlier(exercise.name)
    own_functions = {name: namespace[name] for name in names if name in namespace}
    needed = global_names_of(function)
    namespace.update({name: find_exercise(name).function for name in names})
    try:
        yield tuple(name for name in names if name in needed and name not in own_functions)
    finally:
        for name in names:
            namespace.pop(name, None)
        namespace.update(own_functions)


@contextmanager
def without_body(exercise: Exercise) -> Iterator[None]:
    """Make the library's function of this exercise raise for the length of a block, by whatever way it is called.

    So a check agrees with the grading, where its body is missing.
    """
    library: FunctionType = inspect.unwrap(exercise.function)
    stub: dict[str, FunctionType] = {}
    exec(f"{stub_head(exercise)}    raise NotImplementedError({LIBRARY_GONE!r})\n", library.__globals__, stub)
    library.__code__, body = stub[exercise.name].__code__, library.__code__
    try:
        yield
    finally:
        library.__code__ = body


def _names(function: Callable, name: str) -> bool:
    """Say whether a function of the library names another one in its body."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is not None and name in code.co_names


def _reference(name: str, function: Callable) -> Callable:
    """The function of that exercise, if this one can stand in for it."""
    try:
        exercise = find_exercise(name)
    except KeyError as error:
        raise ValueError(f"using({name}=...): {error.args[0]}") from None
    if fault := signature_fault(function, exercise):
        raise ValueError(f"using({name}=...): {fault}")
    return exercise.function


def _in_force(reference: Callable) -> Callable:
    """The function that stands for this reference now: that of the innermost block which has one, or the reference."""
    return next((block.stand_ins[reference] for block in reversed(_active) if reference in block.stand_ins), reference)


def _replace_everywhere(old: Callable, new: Callable) -> None:
    """Put `new` wherever grpo_lab keeps `old`."""
    for namespace in _namespaces():
        _replace_in(namespace, old, new)


def _replace_in(namespace: dict[str, Any], old: Callable, new: Callable) -> None:
    for name, value in list(namespace.items()):
        if value is old:
            namespace[name] = new


def _globals_of(function: Callable) -> dict[str, Any]:
    """The names of the module or notebook in which a function was written; none of those of grpo_lab."""
    namespace = getattr(inspect.unwrap(function), "__globals__", None)
    if not isinstance(namespace, dict) or str(namespace.get("__name__")).startswith("grpo_lab."):
        return {}
    return namespace


def _namespaces() -> Iterator[dict[str, Any]]:
    """The dictionaries in which grpo_lab keeps functions: modules, tables in them, and defaults of keyword arguments.

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
