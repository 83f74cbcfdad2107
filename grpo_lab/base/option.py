"""Options: fields of a dataclass, each declared with its default, its help, its values and when it is read.

An option of a command becomes one word of its command line, such as `--beta`, by `add_options` in
`command_options.py`, which also collects the options that are not settings. A *setting* is an option that is also a
field of `GRPOConfig`: those of losses are declared in `objective/losses.py`, all others in `config/settings.py`.
"""

import math
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from grpo_lab.base.checks import InputError, InputTypeError, check_choice, check_finite

# The types of values that cannot name code; an option of another type has to declare which code it can name.
TYPES_WITHOUT_NAMES = (int, float, bool, list[int], list[float], types.NoneType)


class NamedCode(Enum):
    """The kind of code that the value of an option can name, by which a file of options is judged."""

    NOTHING = "no code: a file may hold any value"
    PATH = "no code, but a path: a file may hold none of another machine"
    TASK = "a task or a data set"
    REWARDS = "reward functions"
    FORMULA = "a loss or an estimator of advantages"
    IMPORT = "objects to import: tools or an environment"


@dataclass(frozen=True)
class Interval:
    """The numbers between two ends, each of which belongs to the interval or not."""

    low: float = -math.inf
    high: float = math.inf
    includes_low: bool = False
    includes_high: bool = False

    def __contains__(self, value: float) -> bool:
        is_end = (self.includes_low and value == self.low) or (self.includes_high and value == self.high)
        return is_end or self.low < value < self.high

    def __str__(self) -> str:
        return f"{'[' if self.includes_low else '('}{self.low}, {self.high}{']' if self.includes_high else ')'}"


@dataclass(frozen=True)
class OptionSpec:
    """The declaration of an option.

    Fields that are not listed here are arguments of `option`.

    name: The name of the field and of the option.
    type: The annotation of the field, such as `int | None`.
    group: The heading in `--help`; "" for an option that stands among the first, without a heading.
    interval: The allowed numbers, if the option is a number.
    """

    name: str
    type: Any
    default: Any
    help_text: str
    group: str
    named_code: NamedCode
    interval: Interval
    choices: Collection[str]
    read_if: Mapping[str, Any]
    default_text: str
    metavar: str | None
    aliases: tuple[str, ...]
    may_change_on_resume: bool
    passed_to_evaluate: bool
    converted_to: str | None

    @property
    def may_be_none(self) -> bool:
        return types.NoneType in union_members(self.type)

    def is_off(self, value: Any) -> bool:
        """Return True for None; in an option that may not be None, also for False, the integer 0 and an empty text."""
        if self.may_be_none or float in union_members(self.type):
            return value is None
        return not value


def option(
    default: Any,
    help_text: str,
    *,
    group: str = "",
    named_code: NamedCode | None = None,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    choices: Collection[str] = (),
    read_if: Mapping[str, Any] | None = None,
    default_text: str = "",
    metavar: str | None = None,
    aliases: tuple[str, ...] = (),
    may_change_on_resume: bool = False,
    passed_to_evaluate: bool = False,
    converted_to: str | None = None,
) -> Any:
    """Declare an option: return a dataclass field with its default and the declaration for `OptionSpec`.

    Args:
        help_text: The text for `--help`, without the choices, the condition and the default, which are added to it.
        group: The heading in `--help` that starts with this option; "" for that of the field before it.
        named_code: The kind of code that a value can name. Only numbers, switches and texts with a list of choices may
            leave it out, since they name none; `option_specs` refuses any other field without it.
        at_least, above, at_most, below: The ends of the `Interval` of a number; `at_least` and `at_most` belong to it.
            An end that is not given is infinite and does not belong to it.
        choices: The allowed texts; or a table of entries by name, to which the user's own loss or advantage is added.
            An entry has `reads`, the names of options that are read if it is chosen. Empty if there are no choices.
        read_if: Other options with a value each; this option is read if any of them has its value, where True stands
            for any value but None, False, 0 and an empty text. If it is None, the option is always read, unless an
            entry of a table of choices has it in `reads`.
        default_text: The default in words, for `--help`, if the command does not take `default` itself.
        metavar: The name of the value in `--help`; None for the usual one of the type.
        aliases: Further names of the option, such as TRL's.
        may_change_on_resume: Whether a resumed run may have another value. The result of training does not depend on
            such a setting, but for `max_steps`, whose new value the folder of the run checks.
        passed_to_evaluate: Whether an evaluation of the trained model takes the option over from the run.
        converted_to: The setting that replaces the option once the number of rows is known; None for none.
    """
    interval = Interval(
        low=next((end for end in (at_least, above) if end is not None), -math.inf),
        high=next((end for end in (at_most, below) if end is not None), math.inf),
        includes_low=at_least is not None,
        includes_high=at_most is not None,
    )
    metadata = {
        "help_text": help_text,
        "group": group,
        "named_code": named_code,
        "interval": interval,
        "choices": choices,
        "read_if": read_if or {},
        "default_text": default_text,
        "metavar": metavar,
        "aliases": aliases,
        "may_change_on_resume": may_change_on_resume,
        "passed_to_evaluate": passed_to_evaluate,
        "converted_to": converted_to,
    }
    return field(default=default, metadata=metadata)


def option_specs(dataclass_type) -> dict[str, OptionSpec]:
    """Return the declarations of a dataclass's options by name; all its fields are made by `option`.

    Raises:
        TypeError: for an option that can name code and does not say which.
    """
    specs = {}
    group = ""
    for member in fields(dataclass_type):
        declaration: dict[str, Any] = dict(member.metadata)
        group = declaration["group"] or group
        if declaration["named_code"] is None:
            has_fixed_choices = declaration["choices"] and not isinstance(declaration["choices"], Mapping)
            if not has_fixed_choices and not {*union_members(member.type)} <= {*TYPES_WITHOUT_NAMES}:
                raise TypeError(f"option {member.name!r} has no named_code, which says what code its value can name")
            declaration["named_code"] = NamedCode.NOTHING
        specs[member.name] = OptionSpec(member.name, member.type, member.default, **declaration | {"group": group})
    return specs


def default_values(specs: Mapping[str, OptionSpec]) -> dict[str, Any]:
    """Return the defaults of options by name."""
    return {name: spec.default for name, spec in specs.items()}


def changed_values(values: Mapping[str, Any], specs: Mapping[str, OptionSpec]) -> dict[str, Any]:
    """Return the values of options that differ from their defaults, by name."""
    return {name: values[name] for name, spec in specs.items() if values[name] != spec.default}


def union_members(annotation) -> tuple:
    """Return the types that an annotation such as `int | None` allows."""
    return typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)


def check_type(spec: OptionSpec, value: Any) -> None:
    """Raise InputTypeError for a value of the wrong type; an int counts as a float, and a bool as neither."""
    kinds = union_members(spec.type)
    accepted = [typing.get_origin(kind) or kind for kind in kinds]
    accepted += [int] if float in accepted else []
    if not isinstance(value, tuple(accepted)) or (isinstance(value, bool) and bool not in accepted):
        names = " or ".join("None" if kind is types.NoneType else kind.__name__ for kind in kinds)
        raise InputTypeError(spec.name, value, f"expected {names}")


def check_value(spec: OptionSpec, value: Any, allow_infinity: bool = False) -> None:
    """Raise InputError for a value that is not among the option's choices, or a number out of its interval.

    allow_infinity: Whether infinity is allowed in an interval without an upper end.
    """
    if choices := tuple(spec.choices):
        for choice in value if isinstance(value, list) else [value]:
            check_choice(spec.name, choice, (None, *choices) if spec.may_be_none else choices)
    elif {int, float} & {*union_members(spec.type)} and value is not None:
        interval = spec.interval
        if value == math.inf and (math.inf in interval or (allow_infinity and interval.high == math.inf)):
            return
        if math.inf not in interval:
            check_finite(spec.name, value)
        if value not in interval:
            raise InputError(spec.name, value, f"it must lie in {interval}")


def unused_options(explicit: Mapping[str, Any], specs: Mapping[str, OptionSpec]) -> Iterator[tuple[str, str]]:
    """Yield the name of each explicit option that is not off but that nothing reads, with the reason in words.

    Args:
        explicit: The values that were chosen, by name; every other option has its default.
        specs: The declarations of these options and of those that decide whether they are read.
    """
    values = {**default_values(specs), **explicit}
    for name, spec in specs.items():
        if name in explicit and not spec.is_off(explicit[name]) and (reasons := reasons_unread(spec, values, specs)):
            yield name, " and ".join(reasons)


def reasons_unread(spec: OptionSpec, values: Mapping[str, Any], specs: Mapping[str, OptionSpec]) -> list[str]:
    """Return why no condition holds under which an option is read; [] if one holds, or if it is always read.

    A condition is the value of another option. A reason is such as "engine = 'grpo_lab', only with 'trl'".

    Args:
        spec: The declaration of the option.
        values: The values of all options by name.
        specs: The declarations of all options, among them those with tables of choices, such as loss_type.
    """
    # Names of options with the values of each that are accepted; None: all but None, False, 0 and an empty text.
    conditions: list[tuple[str, tuple[Any, ...] | None]] = []
    for table_spec in specs.values():
        if isinstance(table_spec.choices, Mapping):
            reading_choices = tuple(choice for choice, entry in table_spec.choices.items() if spec.name in entry.reads)
            if reading_choices:
                conditions.append((table_spec.name, reading_choices))
    conditions += [(name, None if value is True else (value,)) for name, value in spec.read_if.items()]
    reasons = []
    for name, accepted in conditions:
        value = values[name]
        if bool(value) if accepted is None else value in accepted:
            return []
        remedy = f", only with {accepted[0]!r}" if accepted is not None and len(accepted) == 1 else ""
        reasons.append(f"{name} = {value!r}{remedy}")
    return reasons


def check_unused(explicit: Mapping[str, Any], specs: Mapping[str, OptionSpec]) -> None:
    """Raise InputError for the first option of `unused_options`, which has the same arguments."""
    for name, reason in unused_options(explicit, specs):
        raise InputError(name, explicit[name], f"leave it out: nothing reads it with {reason}")
