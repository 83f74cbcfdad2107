"""All exercises, by the name of the function that is to be written, in the order of the notebooks.

Each is in a file of that name, as EXERCISE, and NAMES of its notebook has the order. A file is imported when somebody
asks for its exercise: whoever checks a function of notebook 01 does not wait for the language-model libraries.
"""

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache

from grpo_lab.course.exercise import Exercise

_loaded: dict[str, Exercise] = {}


def exercise(name_or_function: str | Callable) -> Exercise:
    """The exercise of that name; a function is looked up by its `__name__`.

    Raises:
        KeyError: if there is none; the message lists the names.
    """
    name = name_or_function if isinstance(name_or_function, str) else getattr(name_or_function, "__name__", "")
    if name not in _loaded:
        if name not in _homes():
            raise KeyError(f"exercise is {name!r}; expected one of {', '.join(map(repr, _homes()))}")
        _loaded[name] = importlib.import_module(f"{_homes()[name]}.{name}").EXERCISE
    return _loaded[name]


def earlier(name: str) -> list[str]:
    """The exercises of the same notebook that stand before this one; none for a name that there is not."""
    names = [one for one, home in _homes().items() if home == _homes().get(name)]
    return names[: names.index(name)] if name in names else []


@cache
def _homes() -> dict[str, str]:
    """Name of an exercise -> the package of its notebook."""
    homes: dict[str, str] = {}
    for package in sorted(module.name for module in pkgutil.iter_modules(__path__, f"{__name__}.") if module.ispkg):
        for name in importlib.import_module(package).NAMES:
            if name in homes:
                raise ValueError(f"exercise {name} stands in {homes[name]} and {package}; expected it in one")
            homes[name] = package
    return homes


@cache
def _all() -> dict[str, Exercise]:
    return {name: exercise(name) for name in _homes()}


def __getattr__(name: str) -> dict[str, Exercise]:
    if name != "EXERCISES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _all()
