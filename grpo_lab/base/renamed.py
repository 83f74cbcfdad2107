"""Old names, which keep working and warn with a `DeprecationWarning` that gives the new name (docs/stability.md)."""

import importlib
import warnings
from collections.abc import Callable
from typing import Any


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
