"""What a reward function is, in words that compare in another process: a resumed run must not get another.

It is known by the file that defines it, which changes with its helpers and constants, too; in a script or a notebook,
which one edits in order to resume, by its own source and what it names there; the rewards of this package by name. And
by what it was made with: defaults, the values that a closure, a `functools.partial` or an instance holds. What cannot
be compared, such as a client or a model, may say what it is: a text as its attribute `fingerprint`. What the file
imports, or a judge answers, is not looked at.
"""

import contextlib
import functools
import hashlib
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import torch

PLAIN = (type(None), bool, int, float, complex, str, bytes, Path, torch.dtype, torch.device)


def of_function(function: Callable, seen: tuple = ()) -> dict:
    """Describe a function: name, what it was made with in words, what of that has none, checksums of its source."""
    fingerprint, bound = getattr(function, "fingerprint", None), []
    captured = {} if fingerprint is None else {"fingerprint": str(fingerprint)}
    while isinstance(function, functools.partial):
        captured |= {f"argument {index}": value for index, value in enumerate(function.args)} | function.keywords
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    files = _definition(function, named)
    unknown = ["a function without source"] if files is None and fingerprint is None else []
    for label, value in (captured | (_made_with(function) if fingerprint is None else {})).items():
        try:
            words = _in_words(value, (*seen, function))
        except _UnknownError as error:
            unknown.append(f"{label} ({error})")
        else:
            bound.append(f"{label} = {words if len(words) < 200 else f'{words[:60]}... ({_hash(words.encode())})'}")
    name = f"{named.__module__}.{named.__qualname__}"
    return {"name": name, "bound": bound, "unknown": unknown, "files": files or {}}


def _made_with(function: Callable) -> dict[str, Any]:
    """The values that a function holds beside its source: of its closure, its defaults, or its instance.

    In a script or a notebook, whose whole source is not compared, also the plain values and functions that it names.
    """
    owner = getattr(function, "__self__", None)
    holder = function if owner is None or inspect.ismodule(owner) else owner
    if inspect.isclass(holder) or inspect.isbuiltin(holder):
        return {}
    if not inspect.isfunction(holder):
        # Of slots, and of what is written in C, nobody can say what it holds.
        has_more = any(getattr(kind, "__slots__", ()) for kind in type(holder).__mro__)
        return {"its state": object()} if has_more or not hasattr(holder, "__dict__") else vars(holder)
    parameters = inspect.signature(holder, follow_wrapped=False).parameters.values()
    captured = {p.name: p.default for p in parameters if p.default is not p.empty and p.default is not None}
    for name, cell in zip(holder.__code__.co_freevars, holder.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not filled yet
            captured[name] = cell.cell_contents
    namespace = holder.__globals__
    if namespace.get("__name__") == "__main__":
        used = {name: namespace[name] for name in sorted(_names(holder.__code__)) if name in namespace}
        captured |= {
            name: value for name, value in used.items() if isinstance(value, PLAIN) or inspect.isfunction(value)
        }
    return captured


def _names(code: CodeType) -> set[str]:
    """The names in a function and in those inside it."""
    return {*code.co_names, *(name for inner in code.co_consts if inspect.iscode(inner) for name in _names(inner))}


class _UnknownError(Exception):
    """Raised for a value that nobody can compare; the message is its type."""


def _in_words(value: Any, seen: tuple) -> str:
    """A value as it prints in each process: plain ones, containers of them, and what functions and instances hold."""
    if any(value is holder for holder in seen):  # a function that calls itself, a list in itself
        return "itself"
    inner = functools.partial(_in_words, seen=(*seen, value))
    if hasattr(value, "fingerprint"):
        return str(value.fingerprint)
    if isinstance(value, re.Pattern):
        return inner((value.pattern, value.flags))  # its repr is cut
    if isinstance(value, PLAIN) or inspect.isclass(value) or inspect.ismodule(value):
        return repr(value)
    if isinstance(value, dict | list | tuple | set | frozenset):
        words = [inner(element) for element in (value.items() if isinstance(value, dict) else value)]
        in_order = words if isinstance(value, list | tuple) else sorted(words)
        return f"{type(value).__name__}({', '.join(in_order)})"
    if callable(value) and not isinstance(value, torch.nn.Module):
        ingredients = of_function(value, seen)
        if not ingredients["unknown"]:
            return " ".join(str(ingredients[part]) for part in ("name", "bound", "files"))
    raise _UnknownError(type(value).__name__)


def _definition(function: Callable, named: Any) -> dict[str, str] | None:
    """The checksums of what defines a function or class, by file: none for ours and for C, None if nobody has it."""
    # A decorator's inner function bears the module's name of the one inside it.
    module = getattr(function, "__globals__", {}).get("__name__") or named.__module__ or ""
    if module.split(".")[0] == "grpo_lab":
        return {}
    file = Path(getattr(sys.modules.get(module), "__file__", None) or "")
    if module != "__main__" and file.is_file():
        return {file.name: _hash(file.read_bytes())}
    code = getattr(function, "__code__", None)
    try:
        return {module: _hash(inspect.getsource(code or named).encode())}
    except (OSError, TypeError):  # written in C, or typed into a console
        return {} if code is None else None


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
