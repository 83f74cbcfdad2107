"""When do two outcomes count as equal?"""

from typing import Any

import torch
from torch import Tensor

from grpo_lab.course.checking.outcome import Outcome
from grpo_lab.course.checking.plain_data import same
from grpo_lab.course.exercise import Exercise


def equal(got: Outcome, expected: Outcome, exercise: Exercise) -> bool:
    """Same value, gradients, changes in place and observations; or an exception of the same type."""
    if not equal_values(got, expected, exercise):
        return False
    return bool(expected.error) or equal_gradients(got, expected, exercise)


def equal_values(got: Outcome, expected: Outcome, exercise: Exercise) -> bool:
    """As `equal`, whatever the gradients are."""
    if got.fault or expected.fault:
        return False
    if got.error or expected.error:
        return got.error == expected.error
    return (
        same(got.value, expected.value, exercise.tolerance)
        and same(got.changed, expected.changed, exercise.tolerance)
        and same(got.observed, expected.observed, exercise.tolerance)
    )


def equal_gradients(got: Outcome, expected: Outcome, exercise: Exercise) -> bool:
    """No gradient at all and a gradient of zeros are the same."""
    return all(
        same_gradient(got.gradients.get(name), expected.gradients.get(name), exercise.tolerance)
        for name in exercise.gradient_of
    )


def same_gradient(got: Any, expected: Any, tolerance: float) -> bool:
    if isinstance(got, list) or isinstance(expected, list):
        a, b = ([x] if not isinstance(x, list) else x for x in (got, expected))
        a, b = (x * len(y) if len(x) == 1 and x[0] is None else x for x, y in ((a, b), (b, a)))
        return len(a) == len(b) and all(same_gradient(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if got is None and expected is None:
        return True
    got, expected = _zeros_for_none(got, expected), _zeros_for_none(expected, got)
    return same(got, expected, tolerance)


def _zeros_for_none(gradient: Any, other: Any) -> Any:
    return torch.zeros_like(other) if gradient is None and isinstance(other, Tensor) else gradient


def no_gradient(gradient: Any) -> bool:
    """None, or zero everywhere."""
    parts = gradient if isinstance(gradient, list) else [gradient]
    return all(part is None or (isinstance(part, Tensor) and not part.any()) for part in parts)
