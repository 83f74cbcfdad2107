"""Do the arguments of a function have the names, kinds and defaults that an exercise asks for?"""

import inspect
from collections.abc import Callable, Mapping

from grpo_lab.course.exercise import Exercise


def signature_fault(function: Callable, exercise: Exercise) -> str:
    """What is wrong with names, order, kinds or defaults of the arguments; "" if nothing is."""
    if not callable(function) or isinstance(function, type):
        return f"{function!r} is not a function"
    needed = inspect.signature(exercise.function).parameters
    try:
        given = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return f"the arguments of {function!r} cannot be read"
    if _names(given) != _names(needed):
        return f"it takes ({', '.join(given)}), and ({', '.join(needed)}) are needed"
    for name, parameter in needed.items():
        if parameter.kind in VARIADIC:
            continue
        if given[name].kind != parameter.kind:
            return f"{name} is {given[name].kind.description}, and {parameter.kind.description} is needed"
        if not _same_default(given[name].default, parameter.default):
            return f"{name} {_says_default(given[name].default)}; the exercise {_says_default(parameter.default)}"
    return ""


VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _names(parameters: Mapping[str, inspect.Parameter]) -> list:
    """Of `*args` and `**kwargs` no caller sees the names."""
    return [parameter.kind if parameter.kind in VARIADIC else name for name, parameter in parameters.items()]


def _same_default(a, b) -> bool:
    return a is b or (type(a) is type(b) and bool(a == b)) or (_is_real(a) and _is_real(b) and a == b)


def _is_real(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _says_default(default) -> str:
    return "has no default" if default is inspect.Parameter.empty else f"has the default {default!r}"
