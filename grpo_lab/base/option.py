"""Options of the commands that are not settings of a run: fields of a dataclass, each declared with `option`.

From a declaration, `add_options` in `config/arguments.py` makes the option of the command line and its help. The groups
of options are joined in `command_options.py`; settings are declared by `grpo_lab.base.setting`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any


class NamedCode(Enum):
    """The kind of code that the value of an option or a setting can name, by which `file_trust` judges a file."""

    NOTHING = "no code: a file may hold any value"
    TASK = "a task or a data set"
    REWARDS = "reward functions"
    FORMULA = "a loss or an estimator of advantages"
    IMPORT = "objects to import: tools or an environment"


@dataclass(frozen=True)
class OptionSpec:
    """The declaration of an option of a command.

    Fields that are not listed here are arguments of `option`.

    name: The name of the field and of the option.
    type: The annotation of the field. An option of a list takes several words; one of type `bool` is a switch, which
        needs no word. None cannot be typed: it is the default of an option that was left out.
    group: The heading in `--help`; "" for an option that stands among the first, without a heading.
    """

    name: str
    type: Any
    default: Any
    group: str
    help_text: str
    named_code: NamedCode
    default_text: str
    choices: tuple[str, ...]
    metavar: str | None
    aliases: tuple[str, ...]
    needs: dict[str, Any]
    passed_to_evaluate: bool
    converted_to: str | None


def option_specs(dataclass_type, group: str = "") -> dict[str, OptionSpec]:
    """Return the declarations of a dataclass's options by name; all its fields are made by `option`.

    group: The heading of these options in `--help`; "" for none.
    """
    return {
        member.name: OptionSpec(member.name, member.type, member.default, group, **member.metadata)
        for member in fields(dataclass_type)
    }


def default_values(specs: Mapping[str, OptionSpec]) -> dict[str, Any]:
    """Return the defaults of options by name."""
    return {name: spec.default for name, spec in specs.items()}


def option(
    default: Any,
    help_text: str,
    *,
    named_code: NamedCode,
    default_text: str = "",
    choices: tuple[str, ...] = (),
    metavar: str | None = None,
    aliases: tuple[str, ...] = (),
    needs: dict[str, Any] | None = None,
    passed_to_evaluate: bool = False,
    converted_to: str | None = None,
) -> Any:
    """Declare an option: return a dataclass field with its default and the declaration for `OptionSpec`.

    Args:
        help_text: The text for `--help`, without the default and what the option needs, which are added to it.
        named_code: The kind of code that a value can name. It has no default, so that each option is classified.
        default_text: The default in words, for `--help`, if the default itself is None.
        choices: The allowed texts; empty if there are no choices.
        metavar: The name of the value in `--help`; None for the usual one of the type.
        aliases: Further names of the option, such as TRL's.
        needs: The values of other options without which nothing reads this one; None for none.
        passed_to_evaluate: Whether an evaluation of the trained model takes the option over from the run.
        converted_to: The setting that replaces the option once the number of rows is known; None for none.
    """
    metadata = {
        "help_text": help_text,
        "named_code": named_code,
        "default_text": default_text,
        "choices": choices,
        "metavar": metavar,
        "aliases": aliases,
        "needs": needs or {},
        "passed_to_evaluate": passed_to_evaluate,
        "converted_to": converted_to,
    }
    return field(default=default, metadata=metadata)


def typed_option(name: str, value: Any) -> str:
    """Return an option with its value as it is typed, such as "--engine trl"; a switch that is on has no value."""
    return f"--{name}" if value is True else f"--{name} {value}"
