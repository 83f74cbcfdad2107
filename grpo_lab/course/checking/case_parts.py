"""The parts of a verdict that show a case: its input, the result and what is expected.

Each value is shown in one line for the short form of a verdict, and in full for its details.
"""

import dataclasses
import textwrap
from inspect import BoundArguments
from typing import Any

import torch
from torch import Tensor

from grpo_lab.base.display import MAX_COLUMNS, tensor_lines
from grpo_lab.base.language import fill
from grpo_lab.course.checking.difference import Difference, dtype_name
from grpo_lab.course.checking.outcome import Fault, OtherObject, Outcome, as_plain_data, equal_data
from grpo_lab.course.checking.run_cases import Attempt, case_arguments
from grpo_lab.course.checking.verdict import WIDTH, Part, PartKind, ValueLine, lines_part

LABEL_WIDTH = 10  # columns of the label at the beginning of a line of values
MAX_LINES = 100
_COLUMNS = 2 * MAX_COLUMNS


def short_parts(attempt: Attempt, index: int, difference: Difference, sentence: str) -> list[Part]:
    """Return the parts that are shown at once: the input of a case, the result, and what is expected, on one line each.

    The input gets a second line if `sentence`, which is shown above it, is short.

    Args:
        index: The index of the case.
        difference: The difference between the outcome of the case and the expected one.
        sentence: The first sentence of the verdict.
    """
    width, label = WIDTH - 4 - LABEL_WIDTH, attempt.exercise.cases[index].label
    input_width = 2 * width - 20 if len(textwrap.wrap(sentence, WIDTH)) <= 3 else width
    text = brief_arguments(_shown_arguments(attempt, index), input_width)
    case = label if len(text) + len(label) < width else ""
    first, *continuation = textwrap.wrap(text, width) or [""]
    lines = [_value_line("input", first, case=case), *(_value_line("", line) for line in continuation)]
    trace = attempt.outcomes[index].trace
    if trace:
        lines.append(_value_line("where", brief_text(OtherObject(trace.splitlines()[-1]), width)))
    if difference.fault == Fault.ERROR:
        return [lines_part(PartKind.VALUES, lines)]
    subject = "" if difference.subject == "the result" else difference.subject.removeprefix("the ")
    yours, expected = brief_pair(difference.got, difference.expected, width - len(subject and f"{subject}: "))
    lines.append(_value_line("yours", yours, subject))
    return [
        lines_part(PartKind.VALUES, lines),
        lines_part(PartKind.EXPECTED, [_value_line("expected", expected, subject)]),
    ]


def _value_line(label: str, value: str, subject: str = "", case: str = "") -> ValueLine:
    """Return a line of the short parts; all of their values begin in the same column."""
    return ValueLine(value, label, " " * (LABEL_WIDTH - len(label)), subject, case)


def full_parts(attempt: Attempt, index: int, difference: Difference) -> list[Part]:
    """Return the parts that are shown folded: input, error, result and what is expected in full.

    The arguments are those of `short_parts`.
    """
    outcome, arguments = attempt.outcomes[index], _shown_arguments(attempt, index)
    text = "\n".join(line for name, value in arguments.items() for line in full_text_lines(name, value))
    label = attempt.exercise.cases[index].label
    parts = [Part(PartKind.VALUES, text, fill("Input ({0}):", label) if label else "Input:")]
    if outcome.trace:
        parts.append(Part(PartKind.VALUES, outcome.trace, "Where it happens, in your code:"))
    if "\n" in outcome.message:
        parts.append(Part(PartKind.VALUES, outcome.message, f"{outcome.error}:"))
    title = f"{difference.subject[:1].upper()}{difference.subject[1:]}"
    parts.append(lines_part(PartKind.VALUES, _full_value_lines("yours", difference.got), f"{title}:"))
    parts.append(lines_part(PartKind.EXPECTED, _full_value_lines("expected", difference.expected), "What is expected:"))
    if difference.subject.startswith("the gradient of"):
        parts.append(
            Part(PartKind.SENTENCES, "The gradients are those of the result times random numbers, which never change.")
        )
    return parts + printed_parts(outcome)


def _full_value_lines(label: str, value: Any) -> list[ValueLine]:
    """Return the lines of a value in full, with `label` in place of the value's name."""
    value_lines = []
    for line in full_text_lines("", value):
        if line.startswith(" = "):
            value_lines.append(ValueLine(line.removeprefix(" = "), label, " = "))
        else:
            continues_value = line.startswith(("    ", "…"))
            value_lines.append(ValueLine(line, "" if continues_value else label))
    return value_lines


def _shown_arguments(attempt: Attempt, index: int) -> dict[str, Any]:
    return arguments_shown(case_arguments(attempt.exercise, index, attempt.seed))


def printed_parts(outcome: Outcome) -> list[Part]:
    return [Part(PartKind.VALUES, outcome.printed, "Your function printed:")] if outcome.printed.strip() else []


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
    return value.kind if isinstance(value, OtherObject) else repr(value)
