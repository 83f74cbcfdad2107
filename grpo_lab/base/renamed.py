"""Old names, which keep working and warn with a `DeprecationWarning` that gives the new name (docs/stability.md).

A module, a class or a function names its old names by one of these: `renamed_in_module`, `renamed_attribute`,
`renamed_argument`, `renamed_call` and `renamed_value`. They warn by `warn_renamed`.
"""

import functools
import importlib
import inspect
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def warn_renamed(old_name: str, new_name: str, stacklevel: int = 2) -> None:
    """Warn that an old name was used.

    Args:
        old_name: The old name, as the warning shows it.
        new_name: The new name, as the warning shows it.
        stacklevel: The frame that the warning points to, as `warnings.warn` counts it in the function that calls this
            one: 1 for that function, 2 for its caller.
    """
    warnings.warn(f"{old_name} is called {new_name} now", DeprecationWarning, stacklevel=stacklevel + 1)


def renamed_in_module(module_name: str, new_names: dict[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module that finds objects by their old names.

    Args:
        module_name: The `__name__` of the module.
        new_names: The new name by the old name: a name in the module, or the full name of an object in another module,
            which is imported when the old name is used.
    """

    def get_renamed(name: str) -> Any:
        if name not in new_names:
            raise AttributeError(f"module {module_name!r} has no attribute {name!r}")
        warn_renamed(name, new_names[name])
        other_module_name, _, new_name = new_names[name].rpartition(".")
        return getattr(importlib.import_module(other_module_name or module_name), new_name)

    return get_renamed


def renamed_attribute(old_name: str, new_name: str) -> property:
    """Return a property that gives the value of an attribute or a method of a class under its old name.

    old_name: The old name, as the warning shows it, such as "rollout.turn".
    new_name: The name of the attribute.
    """

    def get_renamed(instance: Any) -> Any:
        warn_renamed(old_name, new_name)
        return getattr(instance, new_name)

    return property(get_renamed, doc=f"Deprecated: the name of `{new_name}` before 1.0.0.")


def renamed_argument(old_name: str, new_name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator for a function that accepts a keyword argument under its old name, too; None is not passed."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            value = kwargs.pop(old_name, None)
            if value is not None:
                warn_renamed(f"the argument {old_name}", new_name)
                kwargs[new_name] = value
            return function(*args, **kwargs)

        return call

    return decorate


def renamed_call(
    old_call: str, new_call: str, new_arguments: Callable[[dict[str, Any]], dict[str, Any] | None]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator for a function that accepts calls with arguments in an old form, too.

    Args:
        old_call: The call in the old form, as the warning shows it.
        new_call: The call in the new form, as the warning shows it.
        new_arguments: Function that gets the arguments by name. It returns those that the new form changes, or None if
            the call has the new form.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                return function(*args, **kwargs)  # the error of a wrong call, which names the function
            changed = new_arguments(bound.arguments)
            if changed is None:
                return function(*args, **kwargs)
            warn_renamed(old_call, new_call)
            bound.arguments |= changed
            return function(*bound.args, **bound.kwargs)

        return call

    return decorate


def renamed_value(name: str, value: Any, new_values: dict[Any, Any], stacklevel: int = 2) -> Any:
    """Return the value of an argument or a field, or the new value if it is an old one.

    Args:
        name: The name of the argument, as the warning shows it.
        value: The value that was passed.
        new_values: The new value by the old value.
        stacklevel: The frame that the warning points to, as in `warn_renamed`.
    """
    if value not in new_values:
        return value
    warn_renamed(f"{name}={value!r}", repr(new_values[value]), stacklevel + 1)
    return new_values[value]
