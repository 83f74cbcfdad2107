"""Replace functions of grpo_lab with the student's own for the length of a block.

A function that is imported by name is an attribute of every module that imported it. It may also be an entry of a table
or the default of an argument. Therefore `using` searches all modules of grpo_lab and replaces the function wherever it
occurs. It does so at the beginning of a block and again, in the other direction, at its end, so that a module that is
imported within the block gets the library's function back, too.

`without_body` replaces code inside the function object instead: then no copy of the function is left to call.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, NamedTuple

from grpo_lab.base.language import Phrase, _, counted, fill
from grpo_lab.course.checking.cell_history import global_names_of, namespace_of
from grpo_lab.course.checking.signature import signature_fault
from grpo_lab.course.exercise import Exercise, function_from_source
from grpo_lab.course.exercises import earlier_names, find_exercise
from grpo_lab.course.stub import LIBRARY_GONE, stub_head

_active: list["using"] = []  # the blocks that are active now, the innermost one last


class _Replacement(NamedTuple):
    """A function of the library, the student's own, and the one that counts its calls and stands in for both."""

    library: Callable
    mine: Callable
    stand_in: Callable


class using:
    """A block in which your functions replace the library's: `with using(kl_estimate=mine) as report: ...`.

    The library's functions are restored at the end of the block, even after an exception. Blocks may be nested; the
    inner one counts. `report.calls` is the number of calls of each function, and `print(report)` tells them in words.

    Args:
        functions: Your functions, by the name of the library's function that each replaces.

    Raises:
        ValueError: If there is no exercise of that name, or a function's arguments differ from the library's.
    """

    def __init__(self, **functions: Callable):
        self.calls = dict.fromkeys(functions, 0)
        self.replacements = [
            _Replacement(_library_function(name, mine), mine, self._counted(name, mine))
            for name, mine in functions.items()
        ]

    def __enter__(self) -> "using":
        for library, mine, stand_in in self.replacements:
            _replace(_current(library), stand_in, _library_namespaces())
            # Functions of a notebook call each other by their names in the notebook.
            _replace(mine, stand_in, [_notebook_namespace(mine)])
        _active.append(self)
        return self

    def __exit__(self, *error) -> None:
        _active.remove(self)
        for library, mine, stand_in in self.replacements:
            _replace(stand_in, mine, [_notebook_namespace(mine)])
            _replace(stand_in, _current(library), _library_namespaces())

    def __repr__(self) -> str:
        if not self.calls:
            return _("no function of yours was used")
        return "\n".join(_(self._sentence(name, calls)) for name, calls in self.calls.items())

    def _sentence(self, name: str, calls: int) -> Phrase:
        """Return a sentence on how often a function was called, and why if it was not.

        If the library's version of another function calls it, the reason is that your version of that one does not.
        """
        if calls:
            return fill("your {0} was called {1}", name, counted(calls, "time"))
        for caller, caller_calls in self.calls.items():
            library: FunctionType = inspect.unwrap(find_exercise(caller).function)
            if caller_calls and name in library.__code__.co_names:
                return fill("your {0} was not called: the library's {1} calls it, and your {1} does not", name, caller)
        return fill("your {0} was not called: what ran here does not need it", name)

    def _counted(self, name: str, function: Callable) -> Callable:
        @functools.wraps(function)
        def stand_in(*args, **kwargs):
            self.calls[name] += 1
            return function(*args, **kwargs)

        return stand_in


@contextmanager
def without_stand_ins() -> Iterator[None]:
    """Restore the library's functions for the length of a block, as if no `using` were active."""
    blocks = _active[:]
    for block in reversed(blocks):
        block.__exit__()
    try:
        yield
    finally:
        for block in blocks:
            block.__enter__()


@contextmanager
def library_stand_ins(function: Callable, exercise: Exercise) -> Iterator[tuple[str, ...]]:
    """Put the library's versions of earlier exercises into a function's namespace for the length of a block.

    So a function is judged by itself. `policy_loss` calls the functions for the ratio and the surrogate, and in the
    notebook these may be stubs, wrong, or not defined because their cells have not run. The grading does the same.

    Yields:
        The names that the function needs and its namespace lacks. Outside of this block, a call raises NameError.
    """
    namespace = namespace_of(function)
    names = earlier_names(exercise.name)
    replaced = {name: namespace[name] for name in names if name in namespace}
    needed = global_names_of(function)
    namespace.update({name: find_exercise(name).function for name in names})
    try:
        yield tuple(name for name in names if name in needed and name not in replaced)
    finally:
        for name in names:
            namespace.pop(name, None)
        namespace.update(replaced)


@contextmanager
def without_body(exercise: Exercise) -> Iterator[None]:
    """Make the library's function of this exercise raise an error for the length of a block, however it is called.

    So a check has the same result as the grading, where the library's function has no body.
    """
    library: FunctionType = inspect.unwrap(exercise.function)
    body = library.__code__
    source = f"{stub_head(exercise)}    raise NotImplementedError({LIBRARY_GONE!r})\n"
    library.__code__ = function_from_source(library, source).__code__
    try:
        yield
    finally:
        library.__code__ = body


def _library_function(name: str, function: Callable) -> Callable:
    """Return the library's function of this name, after a check that `function` can replace it."""
    try:
        exercise = find_exercise(name)
    except KeyError as error:
        raise ValueError(f"using({name}=...): {error.args[0]}") from None
    if fault := signature_fault(function, exercise):
        raise ValueError(f"using({name}=...): {fault}")
    return exercise.function


def _current(library: Callable) -> Callable:
    """Return the function that replaces one of the library now: that of the innermost block, or the library's own."""
    replacements = (replacement for block in reversed(_active) for replacement in block.replacements)
    return next((replacement.stand_in for replacement in replacements if replacement.library is library), library)


def _replace(old: Callable, new: Callable, namespaces: Iterable[dict[str, Any]]) -> None:
    for namespace in namespaces:
        for name, value in list(namespace.items()):
            if value is old:
                namespace[name] = new


def _notebook_namespace(function: Callable) -> dict[str, Any]:
    """Return the namespace of the notebook or module that defines a function; an empty one for grpo_lab's own."""
    namespace = namespace_of(function)
    return {} if str(namespace.get("__name__")).startswith("grpo_lab.") else namespace


def _library_namespaces() -> Iterator[dict[str, Any]]:
    """Yield the dictionaries of grpo_lab that may hold functions: modules, tables, and defaults of keyword arguments.

    The course is left out, because its exercises have to keep their references.
    """
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "grpo_lab" and not name.startswith("grpo_lab.course") and module is not None:
            yield vars(module)
            for value in list(vars(module).values()):
                if isinstance(value, dict):
                    yield value
                elif isinstance(value, FunctionType) and (defaults := inspect.unwrap(value).__kwdefaults__):
                    yield defaults
