"""Compare outcomes, gradients and plain data within a tolerance."""

import math
from typing import Any

import torch
from torch import Tensor

from grpo_lab.course.checking.outcome import Outcome
from grpo_lab.course.exercise import Exercise

FLOAT32_ROUNDING = 1e-4  # rounding error of a sum in float32
FLOAT64_ROUNDING = 1e-11  # rounding error of a difference between two nearly equal numbers in float64


def equal_outcomes(got: Outcome, expected: Outcome, exercise: Exercise) -> bool:
    """Return True if value, gradients, changed arguments and observations agree, or both raised the same error type."""
    if not equal_values(got, expected, exercise):
        return False
    return bool(expected.error) or equal_gradients(got, expected, exercise)


def equal_values(got: Outcome, expected: Outcome, exercise: Exercise) -> bool:
    """Return True if two outcomes agree as in `equal_outcomes`, whatever their gradients."""
    if got.fault or expected.fault:
        return False
    if got.error or expected.error:
        return got.error == expected.error
    pairs = (
        (got.value, expected.value),
        (got.changed_arguments, expected.changed_arguments),
        (got.observed, expected.observed),
    )
    return all(equal_data(a, b, exercise.tolerance) for a, b in pairs)


def equal_gradients(got: Outcome, expected: Outcome, exercise: Exercise) -> bool:
    return all(
        same_gradient(got.gradients.get(name), expected.gradients.get(name), exercise.tolerance)
        for name in exercise.gradient_of
    )


def same_gradient(got: Any, expected: Any, tolerance: float) -> bool:
    """Return True if two gradients agree. A missing gradient equals a gradient of zeros."""
    if got is None or expected is None:
        return no_gradient(got) and no_gradient(expected)
    return equal_data(got, expected, tolerance)


def no_gradient(gradient: Any) -> bool:
    """Return True for a gradient that is None or zero everywhere."""
    return gradient is None or (isinstance(gradient, Tensor) and not gradient.any())


def equal_data(a: Any, b: Any, tolerance: float) -> bool:
    """Return True if plain data agree: structure, shapes and dtypes exactly, and numbers within the tolerance.

    NaN equals NaN.
    """
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and bool(close_entries(a, b, tolerance).all())
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal_data(a[key], b[key], tolerance) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(equal_data(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if is_number(a) and is_number(b):
        return same_numbers(a, b, tolerance)
    return type(a) is type(b) and a == b


def close_entries(a: Tensor, b: Tensor, tolerance: float) -> Tensor:
    """Compare two tensors of one shape number by number, and return a tensor of booleans.

    Integers and booleans have to agree exactly. In float32 the tolerance is at least `FLOAT32_ROUNDING`, relative and
    absolute, since the order of a sum changes its result there; a tolerance of 0 stays 0.

    Args:
        a: The numbers to compare.
        b: The numbers that are right.
        tolerance: The tolerance relative to each number of `b`. It is also the absolute tolerance, multiplied by the
            largest number of `b` if that is below 1.
    """
    if not a.is_floating_point():
        return a == b
    if tolerance and a.dtype == torch.float32:
        tolerance = absolute = max(tolerance, FLOAT32_ROUNDING)
    else:
        finite = b.double().abs()[b.isfinite()]
        absolute = _absolute(tolerance, float(finite.max()) if finite.numel() else 1.0)
    return torch.isclose(a.double(), b.double(), rtol=tolerance, atol=absolute, equal_nan=True)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def same_numbers(a: int | float, b: int | float, tolerance: float) -> bool:
    """Return True if two numbers agree: integers exactly, floats within the tolerance of `close_entries`."""
    if a == b or (a != a and b != b):
        return True
    if not tolerance or (isinstance(a, int) and isinstance(b, int)):
        return False
    try:
        size = abs(float(b))
        return abs(float(a) - float(b)) <= _absolute(tolerance, size) + tolerance * size < math.inf
    except OverflowError:
        return False


def _absolute(tolerance: float, size: float) -> float:
    """Return the absolute tolerance for numbers of which the largest has this size."""
    return min(tolerance, max(tolerance * size, FLOAT64_ROUNDING))
