"""All exercises, by the name of the function that is to be written, in the order of the notebooks.

`EXERCISES` is made when somebody asks for it, and `exercise(...)` imports one notebook's exercises after the other
until it finds the name: whoever checks a function of notebook 01 does not wait for the language-model libraries.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache

from grpo_lab.course.exercise import Exercise

_loaded: dict[str, Exercise] = {}


def exercise(name_or_function: str | Callable) -> Exercise:
    """The exercise of that name; a function is looked up by its `__name__`.

    Raises:
        KeyError: if there is none; the message lists the names.
    """
    name = name_or_function if isinstance(name_or_function, str) else getattr(name_or_function, "__name__", "")
    if name in _loaded:
        return _loaded[name]
    for module in _modules():
        for found in module.EXERCISES:
            if found.name == name:
                return _loaded.setdefault(name, found)
    raise KeyError(f"exercise is {name!r}; expected one of {', '.join(map(repr, _all()))}")


def _modules() -> Iterator:
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name.startswith("nb")):
        yield importlib.import_module(f"{__name__}.{name}")


@cache
def _all() -> dict[str, Exercise]:
    exercises: dict[str, Exercise] = {}
    for module in _modules():
        for found in module.EXERCISES:
            if found.name in exercises:
                both = f"{exercises[found.name].notebook} and {found.notebook}"
                raise ValueError(f"exercise {found.name} stands in notebooks {both}; expected it in one")
            exercises[found.name] = _loaded.setdefault(found.name, found)
    return exercises


def __getattr__(name: str) -> dict[str, Exercise]:
    if name != "EXERCISES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _all()
