"""Values as text: in one line for the short form of a verdict, and in full for its details."""

import dataclasses
from inspect import BoundArguments
from typing import Any

import torch
from torch import Tensor

from grpo_lab.base.display import MAX_COLUMNS, tensor_lines
from grpo_lab.course.checking.outcome import OtherObject, as_plain_data, equal_data

MAX_LINES = 100
_COLUMNS = 2 * MAX_COLUMNS


def full_text_lines(name: str, value: Any) -> list[str]:
    """Return the lines that show a value under its name, at most 100. Large tensors are summarised."""
    lines = _lines(name, value)
    return lines if len(lines) <= MAX_LINES else [*lines[:MAX_LINES], f"… and {len(lines) - MAX_LINES} more lines"]


def brief_text(value: Any, width: int, digits: int = 4) -> str:
    """Return one line of at most `width` characters: the value if it fits, else its kind and size.

    digits: The significant digits of a float.
    """
    text = _text(value, digits)
    if len(text) > width and isinstance(value, Tensor):
        text = f"{tuple(value.shape)} {dtype_name(value)}"
    if len(text) > width and isinstance(value, list | dict):
        text = f"{len(value)} entries: {text}"
    return _cut(text, width)


def brief_arguments(arguments: dict[str, Any], width: int) -> str:
    """Return all arguments as one line of at most `width` characters.

    If they do not fit, arguments that are not numbers are replaced by their kind and size, the longest first.
    """
    texts = {name: f"{name} = {brief_text(value, width)}" for name, value in arguments.items()}
    large = [name for name, value in arguments.items() if not isinstance(value, int | float | bool)]
    for name in sorted(large, key=lambda name: -len(texts[name])):
        if len(", ".join(texts.values())) > width:
            texts[name] = f"{name} = {brief_text(arguments[name], 24)}"
    return _cut(", ".join(texts.values()), width)


def brief_pair(got: Any, expected: Any, width: int) -> tuple[str, str]:
    """Return the result and the expected one as a line each, of at most `width` characters.

    Of two tensors that do not fit, or look the same, only the number that differs most is shown.
    """
    texts = brief_text(got, width), brief_text(expected, width)
    more_digits = brief_text(got, width, 9), brief_text(expected, width, 9)
    if not _are_comparable(got, expected):
        return texts if texts[0] != texts[1] else more_digits
    they_fit = texts == (_text(got, 4), _text(expected, 4))
    if they_fit and texts[0] != texts[1]:
        return texts
    # A distance is NaN if one of the two numbers is NaN, and argmax takes NaN for the largest.
    distances = (got.double() - expected.double()).abs()
    distances = torch.where(got.isnan() & expected.isnan() | (got == expected), 0, distances)
    index = tuple(int(i) for i in torch.unravel_index(distances.argmax(), got.shape))
    position = f"{list(index)}: " if index else ""
    return f"{position}{got[index]:.9g}", f"{position}{expected[index]:.9g}"


def _are_comparable(got: Any, expected: Any) -> bool:
    """Return True for two tensors of the same shape and dtype that have numbers."""
    if not (isinstance(got, Tensor) and isinstance(expected, Tensor)):
        return False
    return got.shape == expected.shape and got.dtype == expected.dtype and got.numel() > 0


def arguments_shown(bound: BoundArguments) -> dict[str, Any]:
    """Return the arguments and the settings of configurations that differ from their defaults, as plain data."""
    defaults = {name: parameter.default for name, parameter in bound.signature.parameters.items()}
    plain_arguments = as_plain_data({name: _settings(value) for name, value in bound.arguments.items()})
    return {name: value for name, value in plain_arguments.items() if not equal_data(value, defaults[name], 0.0)}


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 2]} …"


def _settings(value: Any) -> Any:
    """Return the settings of a configuration that differ from its defaults, by name; any other value unchanged."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    defaults = vars(type(value)())
    return {name: current for name, current in vars(value).items() if current != defaults[name]}


def _lines(name: str, value: Any) -> list[str]:
    if isinstance(value, Tensor):
        if not value.ndim:
            return [f"{name} = {tensor_lines(value)[0]}"]
        numbers = tensor_lines(value, max_columns=_COLUMNS)
        return [f"{name}, shape {tuple(value.shape)}, {dtype_name(value)}", *(f"    {line}" for line in numbers)]
    if isinstance(value, dict) and any(isinstance(part, Tensor | list | dict) for part in value.values()):
        return [line for key, part in value.items() for line in _lines(f"{name}[{key!r}]", part)]
    if isinstance(value, list) and any(isinstance(part, Tensor) for part in value):
        return [line for key, part in enumerate(value) for line in _lines(f"{name}[{key}]", part)]
    return [f"{name} = {brief_text(value, 300, 6)}"]


def _text(value: Any, digits: int) -> str:
    """Return a value as Python writes it, with fewer digits; booleans of a tensor are 1 and 0."""
    if isinstance(value, Tensor):
        if value.numel() > 60:
            return "." * 1000  # a text that is too long for any line, so that kind and size are shown
        return _text((value.int() if value.dtype == torch.bool and value.ndim else value).tolist(), digits)
    if isinstance(value, float):
        return f"{value + 0.0:.{digits}g}"
    if isinstance(value, list):
        return f"[{', '.join(_text(part, digits) for part in value[:100])}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_text(part, digits)}' for key, part in list(value.items())[:100])}}}"
    return value.description if isinstance(value, OtherObject) else repr(value)


def dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
