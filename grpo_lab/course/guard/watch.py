"""Notice, and undo, when code replaces parts of torch, of Python or of this package.

This keeps honest accidents (a helper called `torch.exp = ...`) from spoiling a check, and quick tricks from fooling it.
It is no prison: Python has none. A grade therefore comes from a process that never runs the student's code.
"""

import builtins
import inspect
import math
import sys
import sysconfig
from collections.abc import Callable, Iterable
from itertools import repeat
from operator import is_
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch

_setattr, _delattr, _vars, _getattr = setattr, delattr, vars, getattr
_MISSING = object()
_IGNORED = {
    "input",
    "__annotations__",
    "__annotate_func__",
    "__annotations_cache__",
    "__static_attributes__",
    "__slotnames__",  # a note that copyreg keeps in a class when one of its objects is first copied
    "_abc_impl",
}
_INSIDE_FUNCTIONS = ("__code__", "__defaults__", "__kwdefaults__")
_known: dict[int, tuple[str, Any, dict[str, Any], bool]] = {}


def snapshot(*objects: Any) -> Callable[[], tuple[str, ...]]:
    """Remember everything as it was when first seen, and these objects as they are.

    Returns:
        A function that puts everything back and returns the names of what it had to put back.
    """
    _remember(_ours())
    kept = [*_known.values(), *((type(thing).__name__, thing, dict(_vars(thing)), True) for thing in objects)]

    first = [(label, vars(module), dict(vars(module))) for label, module in (("builtins", builtins), _MYSELF)]

    def undo() -> tuple[str, ...]:
        changed = []
        for label, now, seen in first:  # without a call of anything that may have been replaced itself
            changed += [f"{label}.{name}" for name in seen if now.get(name) is not seen[name] and name not in _IGNORED]
            now.update(seen)
        for label, target, seen, ours in kept:
            if not _unchanged(target, seen, ours):
                names = _undo(target, seen, ours)
                changed += (
                    [label] * bool(names) if type(target) is FunctionType else [f"{label}.{name}" for name in names]
                )
        return tuple(changed)

    return undo


def forget() -> None:
    """From here on, what is there now is how it was when first seen."""
    _known.clear()
    _remember(_OUTSIDE)


def _undo(target: Any, seen: dict[str, Any], ours: bool) -> list[str]:
    now = _current(target)
    candidates = [*seen, *(set(now) - set(seen) if ours else ())]
    names = [name for name in candidates if now.get(name, _MISSING) is not seen.get(name, _MISSING)]
    names = [name for name in names if _counts(name, seen, now) and not _by_a_library(name, seen, now, ours)]
    for name in names:
        _put(target, name, seen.get(name, _MISSING))
    return names


def _unchanged(target: Any, seen: dict[str, Any], ours: bool) -> bool:
    """Quick: a name that is replaced keeps its place in the dictionary, and one that is added goes to its end."""
    if type(target) is FunctionType:
        return all(map(is_, map(_getattr, repeat(target), _INSIDE_FUNCTIONS), seen.values()))
    now = [*_vars(target).values()]
    fits = len(now) == len(seen) if ours else len(now) >= len(seen)
    return fits and all(map(is_, now, seen.values()))


def _counts(name: str, seen: dict[str, Any], now: dict[str, Any]) -> bool:
    imported_meanwhile = name not in seen and isinstance(now[name], ModuleType)
    return name not in _IGNORED and not imported_meanwhile


def _by_a_library(name: str, seen: dict[str, Any], now: dict[str, Any], ours: bool) -> bool:
    """Torch itself wraps some of its functions once a part of it is imported, and they keep their names; of ours, the
    `step` of a class of optimizers, when the first of them is made."""
    new = now.get(name)
    code = _getattr(new, "__code__", None)
    if code is None or not code.co_filename.startswith(_LIBRARIES):
        return False
    return _getattr(new, "__wrapped__", None) is seen.get(name, _MISSING) or (not ours and new.__name__ == name)


def _put(target: Any, name: str, old: Any) -> None:
    if isinstance(target, FunctionType | ModuleType | type):
        _delattr(target, name) if old is _MISSING else _setattr(target, name, old)
    else:
        object.__delattr__(target, name) if old is _MISSING else object.__setattr__(target, name, old)


def _current(target: Any) -> dict[str, Any]:
    if isinstance(target, FunctionType):
        return {name: _getattr(target, name) for name in _INSIDE_FUNCTIONS}
    return dict(_vars(target))


def _remember(targets: Iterable[Any]) -> None:
    for target in targets:
        if id(target) not in _known:
            _known[id(target)] = (_label(target), target, _current(target), _is_ours(target))


def _ours() -> list[Any]:
    """The modules of this package, and the functions and classes that are defined in them."""
    modules = [m for name, m in list(sys.modules.items()) if name.split(".")[0] == "grpo_lab" and _complete(m)]
    inside = [
        thing
        for module in modules
        for thing in list(_vars(module).values())
        if isinstance(thing, FunctionType | type) and _getattr(thing, "__module__", None) == module.__name__
    ]
    unwrapped = [inspect.unwrap(thing) for thing in inside if hasattr(thing, "__wrapped__")]
    return [*modules, *inside, *(f for f in unwrapped if isinstance(f, FunctionType))]


def _complete(module: ModuleType | None) -> bool:
    return module is not None and not getattr(module.__spec__, "_initializing", False)


def _is_ours(target: Any) -> bool:
    """Only of our own things and of tensors are additions undone too: an addition there takes something's place."""
    name = target.__name__ if isinstance(target, ModuleType) else _getattr(target, "__module__", "")
    return target is torch.Tensor or str(name).split(".")[0] == "grpo_lab"


def _label(target: Any) -> str:
    name = _getattr(target, "__qualname__", None) or target.__name__
    return name if isinstance(target, ModuleType) else f"{target.__module__}.{name}"


_TORCH = str(Path(torch.__file__).parent)
_OUTSIDE = (math, torch, torch.Tensor, torch.nn.functional, torch.autograd, torch.linalg, inspect)
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")} | {_TORCH})
_MYSELF = (__name__, sys.modules[__name__])
_remember(_OUTSIDE)
