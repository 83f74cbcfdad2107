"""Compare results and outcomes within a tolerance, and say which properties of an exercise hold."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from grpo_lab.course.checking.plain_data import Outcome
from grpo_lab.course.exercise import Exercise

ROUNDING = 1e-4  # of a sum in float32
NOISE = 1e-11  # of a difference of two nearly equal numbers in float64
NEARLY = 1e-3  # as an epsilon that stands in another place leaves it


def properties(exercise: Exercise, outcomes: Sequence[Outcome], expected: Sequence[Outcome]) -> dict[str, float]:
    """The share of cases that are right, for each property that this exercise asks for. `outcomes` may end early.

    Right values come first: without them nothing else counts, as an answer that returns zeros is stable, too.
    """
    missing = [Outcome(fault="unreached")] * (len(expected) - len(outcomes))
    rows = list(zip(exercise.cases, [*outcomes, *missing], expected, strict=True))
    ordinary = [(got, right) for case, got, right in rows if case.tests == "values"]
    extreme = [(got, right) for case, got, right in rows if case.tests == "stability"]
    telling = _telling([right for _, right in ordinary])
    shares = {"values": fmean(_share(got, right, exercise, telling) for got, right in ordinary)}
    if exercise.gradient_of:
        shares["gradients"] = fmean(equal_gradients(got, right, exercise) for got, right in ordinary)
    if extreme:  # gradients that are wrong everywhere cost their own share only
        agree = equal if shares.get("gradients", 1) == 1 else equal_values
        shares["stability"] = fmean(agree(got, right, exercise) for got, right in extreme)
    return shares if shares["values"] == 1 else dict.fromkeys(shares, 0.0) | {"values": shares["values"]}


def _share(got: Outcome, expected: Outcome, exercise: Exercise, telling: set[str]) -> float:
    """The share of a case: 1 if it is right; else how much of it is nearly right, at most 3/4; below a half 0."""
    if equal_values(got, expected, exercise):
        return 1.0
    nearly = 0.0 if got.fault or got.error else agreement(_results(got, telling), _results(expected, telling))
    return min(nearly, 0.75) if nearly >= 0.5 else 0.0


def _telling(expected: Sequence[Outcome]) -> set[str]:
    """Return the observed parts that differ between cases: one that is the same in all of them is right for nothing."""
    observed = [outcome.observed for outcome in expected if outcome.observed]
    names = {name for parts in observed for name in parts}
    differing = set()
    for name in names:
        first, *others = (parts.get(name) for parts in observed)
        if any(not same(part, first, 0.0) for part in others):
            differing.add(name)
    return differing or names


def idle_share(exercise: Exercise, expected: Sequence[Outcome], nothing: Sequence[Outcome]) -> float:
    """The share of right values that is there for nothing: of constants, of the opposite, or of doing nothing.

    nothing: the outcomes of a function that returns None.
    """
    idle = [[_filled(outcome, fill) for outcome in expected] for fill in (0, 1, -1)]
    return max(properties(exercise, outcomes, expected)["values"] for outcomes in (*idle, nothing))


def _filled(outcome: Outcome, fill: int) -> Outcome:
    """The outcome with every number 0, every number 1 (False, True), or, for -1, with its opposite."""
    observed = outcome.observed and _with_numbers(outcome.observed, fill)
    return replace(outcome, value=_with_numbers(outcome.value, fill), observed=observed, changed={})


def _with_numbers(tree: Any, fill: int) -> Any:
    if isinstance(tree, dict):
        return {name: _with_numbers(part, fill) for name, part in tree.items()}
    if isinstance(tree, list):
        return [_with_numbers(part, fill) for part in tree]
    if isinstance(tree, bool):
        return bool(fill) if fill >= 0 else not tree
    if isinstance(tree, Tensor):
        opposite = ~tree if tree.dtype == torch.bool else -tree
        return torch.full_like(tree, fill) if fill >= 0 else opposite
    if isinstance(tree, int | float):
        return type(tree)(fill) if fill >= 0 else -tree
    return "" if isinstance(tree, str) else tree


def agreement(got: Any, expected: Any) -> float:
    """The share of the parts that agree to one in a thousand, whatever their type and shape.

    A tensor counts where at least three quarters of its numbers agree.
    """
    got, expected = _without_wrapping(got), _without_wrapping(expected)
    if isinstance(got, list) and isinstance(expected, list):
        longest = max(len(got), len(expected))
        shares = [agreement(a, b) for a, b in zip(got, expected, strict=False)]
        return sum(shares) / longest if longest else 1.0
    if isinstance(got, int | float) and isinstance(expected, int | float):
        return float(_same_numbers(got, expected, NEARLY))
    if not (isinstance(got, Tensor) and isinstance(expected, Tensor) and got.numel() == expected.numel() > 0):
        return float(same(got, expected, NEARLY))
    share = float(close(got.double().flatten(), expected.double().flatten(), NEARLY).double().mean())
    return share if share >= 0.75 else 0.0


def _without_wrapping(result: Any) -> Any:
    """The values of a dictionary as a list, and the number in a tensor of one."""
    if isinstance(result, dict):
        return [*result.values()]
    return result.item() if isinstance(result, Tensor) and result.numel() == 1 else result


def _results(outcome: Outcome, telling: set[str]) -> Any:
    if outcome.observed is None:
        return outcome.value
    return {name: outcome.observed.get(name) for name in sorted(telling)}


def equal(got: Outcome, expected: Outcome, exercise: Exercise) -> bool:
    """Compare value, gradients, changes in place and observations; or the type of an exception."""
    if not equal_values(got, expected, exercise):
        return False
    return bool(expected.error) or equal_gradients(got, expected, exercise)


def equal_values(got: Outcome, expected: Outcome, exercise: Exercise) -> bool:
    """Compare as `equal` does, but for the gradients."""
    if got.fault or expected.fault:
        return False
    if got.error or expected.error:
        return got.error == expected.error
    pairs = ((got.value, expected.value), (got.changed, expected.changed), (got.observed, expected.observed))
    return all(same(a, b, exercise.tolerance) for a, b in pairs)


def equal_gradients(got: Outcome, expected: Outcome, exercise: Exercise) -> bool:
    return all(
        same_gradient(got.gradients.get(name), expected.gradients.get(name), exercise.tolerance)
        for name in exercise.gradient_of
    )


def same_gradient(got: Any, expected: Any, tolerance: float) -> bool:
    """Compare two gradients; none at all and one of zeros are the same."""
    if got is None or expected is None:
        return no_gradient(got) and no_gradient(expected)
    return same(got, expected, tolerance)


def no_gradient(gradient: Any) -> bool:
    """Recognise a gradient that is None, or zero everywhere."""
    return gradient is None or (isinstance(gradient, Tensor) and not gradient.any())


def same(a: Any, b: Any, tolerance: float) -> bool:
    """Compare plain data: same structure, shapes and dtypes, numbers within the tolerance, NaN where NaN is."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and bool(close(a, b, tolerance).all())
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key], tolerance) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if is_number(a) and is_number(b):
        return _same_numbers(a, b, tolerance)
    return type(a) is type(b) and a == b


def close(a: Tensor, b: Tensor, tolerance: float) -> Tensor:
    """Compare two tensors of one shape, number by number; integers agree exactly.

    `tolerance` is relative to each number of `b`, or to the largest of them if that is below 1. In float32 sums in
    another order differ by more than in float64, so the tolerance is larger there, and absolute, unless it is 0.
    """
    if not a.is_floating_point():
        return a == b
    if tolerance and a.dtype == torch.float32:
        tolerance = absolute = max(tolerance, ROUNDING)
    else:
        finite = b.double().abs()[b.isfinite()]
        absolute = _absolute(tolerance, float(finite.max()) if finite.numel() else 1.0)
    return torch.isclose(a.double(), b.double(), rtol=tolerance, atol=absolute, equal_nan=True)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same_numbers(a: int | float, b: int | float, tolerance: float) -> bool:
    """Compare two numbers: exactly if they are whole or the tolerance is 0; floats as in `close`."""
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
    """The absolute tolerance for a number that stands beside one of this size."""
    return min(tolerance, max(tolerance * size, NOISE))
