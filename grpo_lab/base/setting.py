"""A setting: a field of a dataclass that says what it may be, what its help says, and what reads it.

It stands beside what reads it: that of a loss in `objective/table.py`, the others in `config/settings.py`.
"""

import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field
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
    """A field with its default.

    about, group: what its help says, and the heading that begins with this setting.
    at_least, above, at_most, below: the ends of the range of a number; one that is left out is infinite.
    choices: the texts that it may be; or entries by name, each with `reads`: the settings that matter if it is chosen.
    read_if: it is read if any of these settings is on. Empty: always, unless it is in the `reads` of some entry.
    trl: "same" if it means the same under this name in TRL, "ours" if the engine translates it or does it itself, else
        why it is refused there.
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


def check_type(spec: Field, value) -> None:
    """Raise InputTypeError for a value of another type; an int is a float, a bool is neither."""
    kinds = union_members(spec.type)
    accepted = [typing.get_origin(kind) or kind for kind in kinds]
    accepted += [int] if float in accepted else []
    if not isinstance(value, tuple(accepted)) or (isinstance(value, bool) and bool not in accepted):
        names = " or ".join("None" if kind is types.NoneType else kind.__name__ for kind in kinds)
        raise InputTypeError(spec.name, value, f"expected {names}")


def check_range(spec: Field, value, infinite: bool = False) -> None:
    """Raise InputError for a value out of its range; `infinite`: infinity will do where the range is open above."""
    # Entries may have come to a table since: a loss of one's own.
    interval, choices = spec.metadata["range"], tuple(spec.metadata["entries"]) or spec.metadata["choices"]
    if choices:
        for each in value if isinstance(value, list) else [value]:
            check_choice(spec.name, each, (None, *choices) if types.NoneType in union_members(spec.type) else choices)
    elif interval is not None and value is not None:
        may_be_infinite = interval.high == math.inf and (infinite or not interval.high_open)
        if not may_be_infinite:
            check_finite(spec.name, value)
        if value not in interval and not (may_be_infinite and value == math.inf):
            raise InputError(spec.name, value, f"it must lie in {interval}")


def unread(config, settings: Mapping[str, Field]) -> Iterator[tuple[str, str]]:
    """Yield each setting that was given (neither at its default nor off) and that nothing reads, and why in words."""
    tables = {name: spec.metadata["entries"] for name, spec in settings.items() if spec.metadata["entries"]}
    for name, spec in settings.items():
        read_if = spec.metadata["read_if"]
        # The settings that choose an entry, such as loss_type, of which some entry reads this one.
        choosers = [table for table in tables if any(name in entry.reads for entry in tables[table].values())]
        value = getattr(config, name)
        is_off = value is None or (not value and float not in union_members(spec.type))
        if value == spec.default or is_off or not (choosers or read_if):
            continue
        is_read = any(getattr(config, switch) for switch in read_if)
        is_read = is_read or any(name in tables[table][getattr(config, table)].reads for table in choosers)
        if not is_read:
            yield name, " and ".join(f"{switch} = {getattr(config, switch)!r}" for switch in (*choosers, *read_if))


def check_read(config, settings: Mapping[str, Field]) -> None:
    """Raise InputError for the first setting that was given and that nothing reads."""
    for name, reason in unread(config, settings):
        raise InputError(name, getattr(config, name), f"leave it out: nothing reads it with {reason}")
