"""Settings: fields of a dataclass with a range or choices, a help text, and a condition under which they are read.

The settings of losses are in `objective/losses.py`, all others in `config/settings.py`.
"""

import math
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from grpo_lab.base.checks import InputError, InputTypeError, check_choice, check_finite
from grpo_lab.base.option import NamedCode


@dataclass(frozen=True)
class Range:
    """An interval of numbers, each of whose ends is open or closed; infinity is in it only at a closed end."""

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
    """The declaration of a setting: its type, its range or choices, its help text, and when it is read.

    Fields that are not listed here are arguments of `setting`.

    name: The name of the field.
    type: The annotation of the field, such as `int | None`.
    range: The range of a number; None if any number is allowed, or if the setting is not a number.
    choices: The allowed texts, or the table of entries by name, to which the user's own loss or advantage is added;
        empty if there are no choices.
    """

    name: str
    type: Any
    default: Any
    help_text: str
    group: str
    range: Range | None
    choices: Collection[str]
    read_if: tuple[str, ...]
    may_change_on_resume: bool
    declared_code: NamedCode | None

    @property
    def named_code(self) -> NamedCode:
        """The kind of code that a value can name; that of an undeclared text other than fixed choices is IMPORT."""
        if self.declared_code is not None:
            return self.declared_code
        is_text = any(kind is str or kind == list[str] for kind in union_members(self.type))
        return NamedCode.IMPORT if is_text and not self.has_fixed_choices else NamedCode.NOTHING

    @property
    def has_fixed_choices(self) -> bool:
        """True if the choices are a list of texts; to a table of entries, the user's own may be added."""
        return bool(self.choices) and not isinstance(self.choices, Mapping)

    @property
    def may_be_none(self) -> bool:
        return types.NoneType in union_members(self.type)


def setting_specs(dataclass_type) -> dict[str, SettingSpec]:
    """Return the declarations of a dataclass's settings by name; all its fields are made by `setting`."""
    return {
        member.name: SettingSpec(member.name, member.type, member.default, **member.metadata)
        for member in fields(dataclass_type)
    }


def setting(
    default,
    help_text: str = "",
    *,
    group: str = "",
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    choices: Collection[str] = (),
    read_if: tuple[str, ...] = (),
    may_change_on_resume: bool = False,
    named_code: NamedCode | None = None,
) -> Any:
    """Declare a setting: return a dataclass field with its default and the declaration for `SettingSpec`.

    Args:
        help_text: The text for `--help`, without the choices and the default, which are added to it.
        group: The heading in `--help` that starts with this setting; "" for none.
        at_least: Smallest value of the range of a number. The range is infinite at an end that is not given.
        above: Lower end of the range, which is not in the range itself.
        at_most: Largest value of the range.
        below: Upper end of the range, which is not in the range itself.
        choices: The allowed texts; or a table of entries by name, each with `reads`, the names of settings that are
            read if the entry is chosen.
        read_if: Names of settings; this setting is read if any of them is on. If empty, the setting is always read,
            unless an entry of a table of choices has it in `reads`.
        may_change_on_resume: Whether a resumed run may have another value. The result of training does not depend on
            such a setting, but for `max_steps`, whose new value the folder of the run checks.
        named_code: The kind of code that a value can name. Only numbers, switches and texts with a list of choices may
            leave it out, since they name none.
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
        "help_text": help_text,
        "group": group,
        "range": interval,
        "choices": choices,
        "read_if": read_if,
        "may_change_on_resume": may_change_on_resume,
        "declared_code": named_code,
    }
    return field(default=default, metadata=metadata)


def union_members(annotation) -> tuple:
    """Return the types that an annotation such as `int | None` allows."""
    return typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)


def check_type(spec: SettingSpec, value) -> None:
    """Raise InputTypeError for a value of the wrong type; an int counts as a float, and a bool as neither."""
    kinds = union_members(spec.type)
    accepted = [typing.get_origin(kind) or kind for kind in kinds]
    accepted += [int] if float in accepted else []
    if not isinstance(value, tuple(accepted)) or (isinstance(value, bool) and bool not in accepted):
        names = " or ".join("None" if kind is types.NoneType else kind.__name__ for kind in kinds)
        raise InputTypeError(spec.name, value, f"expected {names}")


def check_range(spec: SettingSpec, value, allow_infinity: bool = False) -> None:
    """Raise InputError for a value out of the setting's range, or not among its choices.

    allow_infinity: Whether infinity is allowed in a range without an upper end.
    """
    if choices := tuple(spec.choices):
        for choice in value if isinstance(value, list) else [value]:
            check_choice(spec.name, choice, (None, *choices) if spec.may_be_none else choices)
    elif spec.range is not None and value is not None:
        may_be_infinite = spec.range.high == math.inf and (allow_infinity or not spec.range.high_open)
        if not may_be_infinite:
            check_finite(spec.name, value)
        if value not in spec.range and not (may_be_infinite and value == math.inf):
            raise InputError(spec.name, value, f"it must lie in {spec.range}")


def unused_settings(config, settings: Mapping[str, SettingSpec]) -> Iterator[tuple[str, str]]:
    """Yield the name of each setting that was changed but that nothing reads, with the reason in words.

    A setting counts as changed if it differs from its default and is not off: None, False, an integer 0, or empty.
    """
    tables = {name: spec.choices for name, spec in settings.items() if isinstance(spec.choices, Mapping)}
    for name, spec in settings.items():
        # The settings with a table of choices, such as loss_type, in which at least one entry reads this setting.
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
    """Raise InputError for the first setting that was changed but that nothing reads."""
    for name, reason in unused_settings(config, settings):
        raise InputError(name, getattr(config, name), f"leave it out: nothing reads it with {reason}")
