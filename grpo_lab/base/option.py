"""Options of the commands that are not settings of a run: fields of a dataclass that say what a file may set.

The groups of options are joined in `command_options.py`; settings are declared by `grpo_lab.base.setting`.
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

    name: The name of the field.
    type: The annotation of the field: the type of a value that was typed.
    """

    name: str
    type: Any
    default: Any
    named_code: NamedCode
    needs: dict[str, Any]
    passed_to_evaluate: bool
    converted_to: str | None


def option_specs(dataclass_type) -> dict[str, OptionSpec]:
    """Return the declarations of a dataclass's options by name; all its fields are made by `option`."""
    return {
        member.name: OptionSpec(member.name, member.type, member.default, **member.metadata)
        for member in fields(dataclass_type)
    }


def default_values(specs: Mapping[str, OptionSpec]) -> dict[str, Any]:
    """Return the defaults of options by name."""
    return {name: spec.default for name, spec in specs.items()}


def option(
    default: Any,
    *,
    named_code: NamedCode,
    needs: dict[str, Any] | None = None,
    passed_to_evaluate: bool = False,
    converted_to: str | None = None,
) -> Any:
    """Declare an option: return a dataclass field with its default and the declaration for `OptionSpec`.

    Args:
        named_code: The kind of code that a value can name. It has no default, so that each option is classified.
        needs: The values of other options without which nothing reads this one; None for none.
        passed_to_evaluate: Whether an evaluation of the trained model takes the option over from the run.
        converted_to: The setting that replaces the option once the number of rows is known; None for none.
    """
    metadata = {
        "named_code": named_code,
        "needs": needs or {},
        "passed_to_evaluate": passed_to_evaluate,
        "converted_to": converted_to,
    }
    return field(default=default, metadata=metadata)
