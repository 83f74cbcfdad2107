"""A setting: a field of a dataclass that says what it may be, what its help says, and what reads it.

It stands beside what reads it: that of a loss in `objective/table.py`, the others in `config/settings.py`.
"""

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, field
from typing import Any

from grpo_lab.commands.checks import InputError, InputTypeError, check_choice, check_finite


def setting(
    default,
    allowed: str | tuple[str, ...] | Mapping[str, Any] = "",
    about: str = "",
    group: str = "",
    *,
    when: str = "",
    trl: str = "same",
    may_change: bool = False,
) -> Any:
    """A field with its default.

    allowed: the interval of a number, such as "[0, 1)"; the choices for a text; or entries by name, each with `reads`:
        the settings that matter if it is chosen.
    about, group: what its help says, and the heading that begins with this setting.
    when: it is read where these are set: "beta or log_kl", "output_dir and eval_steps". Empty: always, unless it is in
        the `reads` of some entry.
    trl: "same" if it means the same under this name in TRL, "ours" if the engine translates it or does it itself, else
        why it is refused there.
    may_change: whether a resumed run may have another value, because nothing that training computes depends on it.
    """
    entries = allowed if isinstance(allowed, Mapping) else {}
    allowed = tuple(allowed) if entries else allowed
    metadata = {"about": about, "group": group, "when": when, "trl": trl, "may_change": may_change}
    return field(default=default, metadata={"allowed": allowed, "entries": entries} | metadata)


def arguments(function: Callable) -> tuple[str, ...]:
    """The names of its arguments: what an entry's function reads."""
    return tuple(inspect.signature(function).parameters)


def call(function: Callable, inputs: Mapping[str, Any]):
    """Call the function with those of the inputs that are its arguments."""
    return function(**{name: inputs[name] for name in arguments(function)})


def options(annotation) -> tuple:
    """The types that an annotation such as `int | None` allows."""
    return typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)


def check_type(each: Field, value) -> None:
    """Raise InputTypeError for a value of another type; an int is a float, a bool is neither."""
    kinds = options(each.type)
    accepted = [typing.get_origin(kind) or kind for kind in kinds]
    accepted += [int] if float in accepted else []
    if not isinstance(value, tuple(accepted)) or (isinstance(value, bool) and bool not in accepted):
        names = " or ".join("None" if kind is types.NoneType else kind.__name__ for kind in kinds)
        raise InputTypeError(each.name, value, f"expected {names}")


def check_range(each: Field, value, infinite: bool = False) -> None:
    """Raise InputError for a value out of its range; `infinite`: infinity will do where the range is open above."""
    allowed = each.metadata["allowed"]
    if isinstance(allowed, tuple):
        check_choice(each.name, value, (None, *allowed) if types.NoneType in options(each.type) else allowed)
    elif allowed and value is not None:
        low, high = allowed[1:-1].split(", ")
        closed = allowed[-1] == "]" or (infinite and high == "inf")
        if not (closed and high == "inf"):
            check_finite(each.name, value)
        above = value >= float(low) if allowed[0] == "[" else value > float(low)
        below = value <= float(high) if closed else value < float(high)
        if not (above and below):
            raise InputError(each.name, value, f"it must lie in {allowed}")


def unread(config, settings: Mapping[str, Field]) -> Iterator[tuple[str, str]]:
    """Each setting that was given (neither at its default nor off), and that nothing reads; and what the others are."""
    chosen = {name: each.metadata["entries"] for name, each in settings.items() if each.metadata["entries"]}
    for name, each in settings.items():
        words = each.metadata["when"].split()
        choices = [one for one, entries in chosen.items() if any(name in entry.reads for entry in entries.values())]
        value = getattr(config, name)
        is_off = value is None or (not value and float not in options(each.type))
        if value == each.default or is_off or not (choices or words):
            continue
        off = [other for other in words[::2] if not getattr(config, other)]
        is_on = words and (len(off) < len(words[::2]) if "or" in words else not off)
        if not is_on and not any(name in chosen[one][getattr(config, one)].reads for one in choices):
            yield name, " and ".join(f"{other} = {getattr(config, other)!r}" for other in (*choices, *off))


def check_read(config, settings: Mapping[str, Field]) -> None:
    """Raise InputError for the first of these."""
    for name, where in unread(config, settings):
        raise InputError(name, getattr(config, name), f"leave it out: nothing reads it with {where}")
