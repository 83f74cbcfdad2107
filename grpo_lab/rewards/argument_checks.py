"""Checks of what a reward function was called with: its columns, the expected answers, and its settings."""

import numbers
from typing import Any

from grpo_lab.base.checks import InputError, InputTypeError


def expected_texts(name: str, completions: Any, answer: Any) -> list[str | None]:
    """Return the column `answer` as strings, one per completion; None for a completion without an expected answer."""
    check_expected(name, completions, answer)
    return [None if expected is None else str(expected) for expected in answer]


def check_expected(name: str, completions: Any, answer: Any) -> None:
    """Raise an error unless the column `answer` has a str, an int or None for each completion.

    name: The name of the reward, for the message.

    Raises:
        ValueError: if the number of entries is not the number of completions.
        TypeError: if an entry is anything else; the message gives its row. It is a ValueError as well.
    """
    check_column(f"{name}: answer", answer, completions)
    for row, expected in enumerate(answer):
        # A float is refused: 42.0 would be compared as the text "42.0", and a response says "42".
        is_text_or_int = isinstance(expected, str | numbers.Integral) and not isinstance(expected, bool)
        if expected is not None and not is_text_or_int:
            description = f"is {describe_value(expected)}"
            raise InputTypeError(
                f"{name}: answer[{row}]", expected, "expected a str, an int or None", problem=description
            )


def check_number_setting(name: str, value: Any) -> None:
    """Raise TypeError unless the setting of a reward is a number: a column of the same name may have replaced it."""
    if not isinstance(value, numbers.Real):
        expected = "expected a number; a column of the data must have another name than this setting"
        raise InputTypeError(name, value, expected, problem=f"is {describe_value(value)}")


def check_column(name: str, values: Any, completions: Any) -> None:
    """Raise ValueError, with the name of the column, unless it has one entry per completion."""
    is_not_list = isinstance(values, (str, bytes)) or not hasattr(values, "__len__")
    if is_not_list or len(values) != len(completions):
        description = f"is {describe_value(values)}" if is_not_list else f"has {len(values)} entries"
        raise InputError(
            name, values, f"expected one entry for each of {len(completions)} completions", problem=description
        )


def describe_value(value: Any) -> str:
    """Return the type of a value and the first 80 characters of its repr, for messages."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
