"""A setting: a field of a dataclass that says what it may be, what its help says, and what reads it.

It stands beside what reads it: that of a loss in `objective/table.py`, the others in `config/settings.py`.
"""

import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from grpo_lab.base.checks import InputError, InputTypeError, check_choice, check_finite


@dataclass(frozen=True)
class Range:
    """An interval of numbers, each end open or closed. An infinite end is open, unless infinity itself is allowed."""

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False

    def __contains__(self, value) -> bool:
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        return above and below

    def __str__(self) -> str:
        return f"{'(' if self.low_open else '['}{self.low}, {self.high}{')' if self.high_open else ']'}"


@dataclass(frozen=True)
class SettingSpec:
    """The declaration of a setting: what it may be, what its help says, and what reads it.

    about, group: what its help says, and the heading that begins with it.
    range: of a number; None for what is no number, or may be any.
    choices: the texts that it may be, as they were when the package was imported.
    entries: a table of them, each entry with `reads`: the settings that matter if it is chosen. Others may have come to
        it since: a loss of one's own.
    read_if: it is read if any of these settings is on.
    trl: what `--engine trl` does with it, as `setting` takes it.
    may_change: whether a resumed run may have another value.
    """

    name: str
    type: Any  # its annotation, such as `int | None`
    default: Any
    about: str
    group: str
    range: Range | None
    choices: tuple[str, ...]
    entries: Mapping[str, Any]
    read_if: tuple[str, ...]
    trl: str
    may_change: bool

    @property
    def may_be_none(self) -> bool:
        return types.NoneType in union_members(self.type)


def setting_specs(dataclass_type) -> dict[str, SettingSpec]:
    """The settings of a dataclass by name: those of its fields that `setting` declares."""
    declared = [member for member in fields(dataclass_type) if member.metadata]
    return {
        member.name: SettingSpec(member.name, member.type, member.default, **member.metadata) for member in declared
    }


def setting(
    default,
    about: str = "",
    *,
    group: str = "",
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] | Mapping[str, Any] = (),
    read_if: tuple[str, ...] = (),
    trl: str = "same",
    may_change: bool = False,
) -> Any:
    """A field with its default, and what `SettingSpec` says of it.

    about, group: what its help says, and the heading that begins with this setting.
    at_least, above, at_most, below: the ends of the range of a number; one that is left out is infinite.
    choices: the texts that it may be; or entries by name, each with `reads`: the settings that matter if it is chosen.
    read_if: it is read if any of these settings is on. Empty: always, unless it is in the `reads` of some entry.
    trl: "same" if it means the same under this name in TRL, "translated" if the engine translates it or does it itself,
        else why it is refused there.
    may_change: whether a resumed run may have another value, because nothing that training computes depends on it.
    """
    interval = None
    if any(end is not None for end in (at_least, above, at_most, below)):
        low = above if at_least is None else at_least
        high = below if at_most is None else at_most
        interval = Range(
            -math.inf if low is None else low,
            math.inf if high is None else high,
            low_open=at_least is None,
            high_open=at_most is None,
        )
    metadata = {
        "about": about,
        "group": group,
        "range": interval,
        "choices": tuple(choices),
        "entries": choices if isinstance(choices, Mapping) else {},
        "read_if": read_if,
        "trl": trl,
        "may_change": may_change,
    }
    return field(default=default, metadata=metadata)


def union_members(annotation) -> tuple:
    """The types that an annotation such as `int | None` allows."""
    return typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)


def check_type(spec: SettingSpec, value) -> None:
    """Raise InputTypeError for a value of another type; an int is a float, a bool is neither."""
    kinds = union_members(spec.type)
    accepted = [typing.get_origin(kind) or kind for kind in kinds]
    accepted += [int] if float in accepted else []
    if not isinstance(value, tuple(accepted)) or (isinstance(value, bool) and bool not in accepted):
        names = " or ".join("None" if kind is types.NoneType else kind.__name__ for kind in kinds)
        raise InputTypeError(spec.name, value, f"expected {names}")


def check_range(spec: SettingSpec, value, infinite: bool = False) -> None:
    """Raise InputError for a value out of its range; `infinite`: infinity will do where the range is open above."""
    if choices := tuple(spec.entries) or spec.choices:
        for choice in value if isinstance(value, list) else [value]:
            check_choice(spec.name, choice, (None, *choices) if spec.may_be_none else choices)
    elif spec.range is not None and value is not None:
        may_be_infinite = spec.range.high == math.inf and (infinite or not spec.range.high_open)
        if not may_be_infinite:
            check_finite(spec.name, value)
        if value not in spec.range and not (may_be_infinite and value == math.inf):
            raise InputError(spec.name, value, f"it must lie in {spec.range}")


def unused_settings(config, settings: Mapping[str, SettingSpec]) -> Iterator[tuple[str, str]]:
    """Yield each setting that was given (neither at its default nor off) and that nothing reads, and why in words."""
    tables = {name: spec.entries for name, spec in settings.items() if spec.entries}
    for name, spec in settings.items():
        # The settings that choose an entry, such as loss_type, of which some entry reads this one.
        choosers = [table for table in tables if any(name in entry.reads for entry in tables[table].values())]
        value = getattr(config, name)
        is_off = value is None or (not value and float not in union_members(spec.type))
        if value == spec.default or is_off or not (choosers or spec.read_if):
            continue
        is_read = any(getattr(config, switch) for switch in spec.read_if)
        is_read = is_read or any(name in tables[table][getattr(config, table)].reads for table in choosers)
        if not is_read:
            yield name, " and ".join(f"{switch} = {getattr(config, switch)!r}" for switch in (*choosers, *spec.read_if))


def check_unused(config, settings: Mapping[str, SettingSpec]) -> None:
    """Raise InputError for the first setting that was given and that has no effect: nothing reads it."""
    for name, reason in unused_settings(config, settings):
        raise InputError(name, getattr(config, name), f"leave it out: nothing reads it with {reason}")
