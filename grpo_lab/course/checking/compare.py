"""Compare results and outcomes within a tolerance, and compute the share of cases that are right."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from grpo_lab.course.checking.outcome_data import Outcome
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.verdict_words import Fault

FLOAT32_ROUNDING = 1e-4  # rounding error of a sum in float32
FLOAT64_ROUNDING = 1e-11  # rounding error of a difference between two nearly equal numbers in float64
NEARLY_RIGHT = 1e-3  # the relative tolerance within which a number counts as nearly right


def property_shares(exercise: Exercise, outcomes: Sequence[Outcome], expected: Sequence[Outcome]) -> dict[str, float]:
    """Return the share of cases that are right for each property: "values", "gradients" and "stability".

    Gradients and stability count only if all values are right: an answer that returns zeros is also stable.

    Args:
        exercise: The exercise, whose cases decide which properties there are.
        outcomes: The outcomes of an answer on the first cases; missing ones count as wrong.
        expected: The outcomes of the reference on all cases.
    """
    missing = [Outcome(fault=Fault.UNREACHED)] * (len(expected) - len(outcomes))
    rows = list(zip(exercise.cases, [*outcomes, *missing], expected, strict=True))
    ordinary = [(got, right) for case, got, right in rows if case.tested_property == "values"]
    extreme = [(got, right) for case, got, right in rows if case.tested_property == "stability"]
    varying = _varying_observations([right for _, right in ordinary])
    shares = {"values": fmean(_case_share(got, right, exercise, varying) for got, right in ordinary)}
    if exercise.gradient_of:
        shares["gradients"] = fmean(equal_gradients(got, right, exercise) for got, right in ordinary)
    if extreme:
        # If gradients are wrong on ordinary inputs, they already cost their own share, and stability is judged by
        # values alone.
        agree = equal_outcomes if shares.get("gradients", 1) == 1 else equal_values
        shares["stability"] = fmean(agree(got, right, exercise) for got, right in extreme)
    return shares if shares["values"] == 1 else dict.fromkeys(shares, 0.0) | {"values": shares["values"]}


def _case_share(got: Outcome, expected: Outcome, exercise: Exercise, varying: set[str]) -> float:
    """Return how right a case is: 1 if it is right, else the share that is nearly right.

    That share is at most 3/4, and counts as 0 below a half.
    """
    if equal_values(got, expected, exercise):
        return 1.0
    nearly = 0.0 if got.fault or got.error else nearly_right_share(_results(got, varying), _results(expected, varying))
    return min(nearly, 0.75) if nearly >= 0.5 else 0.0


def _varying_observations(expected: Sequence[Outcome]) -> set[str]:
    """Return the names of the observations that differ between cases, or all names if none differs.

    An observation that is the same in all cases can be right without any work, so no share is given for it.
    """
    observed = [outcome.observed for outcome in expected if outcome.observed]
    names = {name for observations in observed for name in observations}
    varying = set()
    for name in names:
        first, *others = (observations.get(name) for observations in observed)
        if any(not equal_data(value, first, 0.0) for value in others):
            varying.add(name)
    return varying or names


def effortless_share(exercise: Exercise, expected: Sequence[Outcome], returning_none: Sequence[Outcome]) -> float:
    """Return the largest share of right values that an answer gets without any work.

    Such answers are: zeros everywhere, ones everywhere, the opposite of what is expected, and None.

    Args:
        expected: The outcomes of the reference on all cases.
        returning_none: The outcomes of a function that returns None.
    """
    constant = [[_filled(outcome, number) for outcome in expected] for number in (0, 1, -1)]
    return max(property_shares(exercise, outcomes, expected)["values"] for outcomes in (*constant, returning_none))


def _filled(outcome: Outcome, number: int) -> Outcome:
    """Return the outcome with every number replaced by `number`, 0 or 1 (False or True); for -1, by its opposite."""
    observed = outcome.observed and _with_numbers(outcome.observed, number)
    return replace(outcome, value=_with_numbers(outcome.value, number), observed=observed, changed_arguments={})


def _with_numbers(tree: Any, number: int) -> Any:
    if isinstance(tree, dict):
        return {name: _with_numbers(part, number) for name, part in tree.items()}
    if isinstance(tree, list):
        return [_with_numbers(part, number) for part in tree]
    if isinstance(tree, bool):
        return bool(number) if number >= 0 else not tree
    if isinstance(tree, Tensor):
        opposite = ~tree if tree.dtype == torch.bool else -tree
        return torch.full_like(tree, number) if number >= 0 else opposite
    if isinstance(tree, int | float):
        return type(tree)(number) if number >= 0 else -tree
    return "" if isinstance(tree, str) else tree


def nearly_right_share(got: Any, expected: Any) -> float:
    """Return the share of the parts that agree to one in a thousand; types and shapes may differ.

    A tensor counts by the share of its numbers that agree if that is at least three quarters, and as 0 otherwise.
    """
    got, expected = _without_wrapping(got), _without_wrapping(expected)
    if isinstance(got, list) and isinstance(expected, list):
        longest = max(len(got), len(expected))
        shares = [nearly_right_share(a, b) for a, b in zip(got, expected, strict=False)]
        return sum(shares) / longest if longest else 1.0
    if isinstance(got, int | float) and isinstance(expected, int | float):
        return float(_same_numbers(got, expected, NEARLY_RIGHT))
    if not (isinstance(got, Tensor) and isinstance(expected, Tensor) and got.numel() == expected.numel() > 0):
        return float(equal_data(got, expected, NEARLY_RIGHT))
    share = float(close_entries(got.double().flatten(), expected.double().flatten(), NEARLY_RIGHT).double().mean())
    return share if share >= 0.75 else 0.0


def _without_wrapping(result: Any) -> Any:
    """Return the values of a dictionary as a list, the number of a one-element tensor, and other results unchanged."""
    if isinstance(result, dict):
        return [*result.values()]
    return result.item() if isinstance(result, Tensor) and result.numel() == 1 else result


def _results(outcome: Outcome, varying: set[str]) -> Any:
    if outcome.observed is None:
        return outcome.value
    return {name: outcome.observed.get(name) for name in sorted(varying)}


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
        return _same_numbers(a, b, tolerance)
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


def _same_numbers(a: int | float, b: int | float, tolerance: float) -> bool:
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
