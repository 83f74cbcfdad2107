"""Errors of wrong arguments, which name the argument, its value and what is expected; and checks that raise them."""

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

MAX_SHOWN_ERRORS = 5  # in a message that combines several errors


class InputError(ValueError):
    """An error that the caller can correct; its message names the argument, its value and what is expected.

    The message of `InputError("epsilon", -0.2, "it must lie in [0, 1]")` is "epsilon is -0.2; it must lie in [0, 1]".
    A command prints the message, with the option in place of the argument, and exits with 2. Any other exception is a
    bug of this package, and the command shows its traceback.

    argument: The name of the argument. Without the other arguments it is the whole message.
    value: The value of the argument.
    expected: What is expected instead, for the end of the message.
    problem: A text that replaces "is" and the value in the message, such as "has shape (2, 3)"; "" for neither. None:
        "is" and the value if something is `expected`, else neither.

    Attributes:
        message_after_argument: The message without the argument.
        combined_errors: The errors that `combine_errors` combined in this one; empty for a single error.
    """

    def __init__(self, argument: str, value: Any = None, expected: str = "", *, problem: str | None = None):
        self.argument = argument
        self.value = value
        self.expected = expected
        self.problem = (f"is {value!r}" if expected else "") if problem is None else problem
        self.message_after_argument = f" {self.problem}" if self.problem else ""
        self.message_after_argument += f"; {expected}" if expected else ""
        self.combined_errors: tuple[InputError, ...] = ()
        super().__init__(argument + self.message_after_argument)


class InputTypeError(InputError, TypeError):
    """An `InputError` for an argument of the wrong type."""


class InputFileError(InputError, FileNotFoundError):
    """An `InputError` for a file, a folder or a model that does not exist."""


class InputPackageError(InputError, ImportError):
    """An `InputError` for a package that is not installed or is incomplete."""


class RunError(InputError, RuntimeError):
    """An error during a run that ends it, such as a reward function that raises, or logits that are not finite."""


def combine_errors(errors: Sequence[InputError], count: int | None = None) -> InputError:
    """Return one error for several: the first error, with the beginnings of the next ones in its message.

    count: Number of all errors, if `errors` holds only the first of them; None for the length of `errors`.
    """
    first, further = errors[0], (len(errors) if count is None else count) - 1
    if not further:
        return first
    texts = (str(error) for error in errors[1:MAX_SHOWN_ERRORS])
    excerpts = "; ".join(text if len(text) <= 150 else f"{text[:147]}..." for text in texts)
    omitted = "" if further < MAX_SHOWN_ERRORS else f"; and {further + 1 - MAX_SHOWN_ERRORS:,} more"
    expected = f"{first.expected}. And: {excerpts}{omitted}" if first.expected else f"and: {excerpts}{omitted}"
    error = type(first)(first.argument, first.value, expected, problem=first.problem)
    error.__cause__ = first.__cause__
    error.combined_errors = tuple(errors)
    return error


def check_choice(name: str, value: Any, choices: Iterable[Any]) -> None:
    """Raise InputError unless the value is one of the choices."""
    if value not in (choices := tuple(choices)):
        raise InputError(name, value, f"expected one of {', '.join(map(repr, choices))}")


def check_finite(name: str, value: Any) -> None:
    """Raise InputError for infinity, NaN, and an integer too large for a float."""
    if not abs(value) <= sys.float_info.max:
        raise InputError(name, value, "expected a finite number")


def check_dtype(name: str, values: Any, kind: str) -> None:
    """Raise InputError unless the dtype of a tensor is of the kind "float", "int" or "bool"."""
    if kind not in str(values.dtype):
        expected = {
            "float": "a floating-point dtype, such as torch.float32",
            "int": "an integer dtype, such as torch.int64",
        }
        raise InputError(name, values.dtype, f"expected {expected.get(kind, f'torch.{kind}')}")


def check_all_finite(name: str, values: Any) -> None:
    """Raise InputError unless all elements of a tensor are finite."""
    if not values.isfinite().all():
        raise InputError(name, values, "all of them must be finite", problem="holds NaN or infinite values")


def check_positive(name: str, value: Any) -> None:
    """Raise InputError unless the value is greater than 0; NaN is refused."""
    if not value > 0:
        raise InputError(name, value, "it must be positive")


def check_at_least(name: str, value: Any, least: Any) -> None:
    """Raise InputError unless the value is at least `least`; NaN is refused."""
    if not value >= least:
        raise InputError(name, value, f"it must be at least {least}")


def check_between(name: str, value: Any, low: Any, high: Any) -> None:
    """Raise InputError unless the value lies in the closed interval from `low` to `high`; NaN is refused."""
    if not low <= value <= high:
        raise InputError(name, value, f"it must lie between {low} and {high}")


def check_shapes(**arguments: tuple[Any, str]) -> None:
    """Raise InputTypeError for an argument that is not a tensor, and InputError for a tensor of the wrong shape.

    Each keyword argument is a pair of a tensor and its expected axes, as in
    `check_shapes(logits=(logits, "B T V"), token_ids=(token_ids, "B T"))`. An axis such as T has the same size in all
    tensors. "B | B #T" allows two shapes, an axis "#T" may also have size 1, and an axis "G>1" has a size above 1. A
    None in place of a tensor is an argument that was not given, and is skipped.
    """
    sizes: dict[str, int] = {}
    for name, (tensor, shapes) in arguments.items():
        if tensor is None:
            continue
        if not hasattr(tensor, "is_floating_point"):
            expected = f"expected a tensor of shape {_shapes_in_words(shapes, sizes)}, such as torch.tensor({name})"
            raise InputTypeError(name, tensor, expected, problem=f"is a {type(tensor).__name__}")
        axes = next((axes for shape in shapes.split("|") if len(axes := shape.split()) == tensor.ndim), None)
        if axes is None or not all(_fits(axis, size, sizes) for axis, size in zip(axes, tensor.shape, strict=True)):
            shape = f"has shape {tuple(tensor.shape)}"
            raise InputError(name, tensor, f"expected {_shapes_in_words(shapes, sizes)}", problem=shape)


def _fits(axis: str, size: int, sizes: dict[str, int]) -> bool:
    """Return True if an axis such as "T", "#T" or "G>1" may have this size; the first size of an axis is recorded.

    sizes: The sizes of the axes by their letters, to which that of a new axis is added.
    """
    axis, _, lower_bound = axis.partition(">")
    if lower_bound and size <= int(lower_bound):
        return False
    return (axis[0] == "#" and size == 1) or sizes.setdefault(axis.lstrip("#"), size) == size


def _shapes_in_words(shapes: str, sizes: dict[str, int]) -> str:
    """Return the expected shapes in words: `(B,) or (B, T), where B = 2 and T = 3`."""
    axes = [re.sub("#|>[0-9]+", "", shape).split() for shape in shapes.split("|")]
    constraints = dict(re.findall("([A-Z])(>[0-9]+)", shapes)) | {axis: f"={size}" for axis, size in sizes.items()}
    stated = [
        f"{axis} {constraints[axis][0]} {constraints[axis][1:]}"
        for axis in dict.fromkeys(re.findall("[A-Z]", shapes))
        if axis in constraints
    ]
    text = " or ".join(f"({', '.join(shape_axes)}{',' if len(shape_axes) == 1 else ''})" for shape_axes in axes)
    return text + (f", where {' and '.join(stated)}" if stated else "")
