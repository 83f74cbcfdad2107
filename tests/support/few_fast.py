"""Mark combinations of parameters as slow, except for a few in which each value occurs, for the fast run."""

from collections.abc import Callable, Iterable, Sequence
from itertools import product

import pytest


def few_fast(cases: Iterable[Sequence], *axes: Sequence, key: Callable | None = None) -> list:
    """Return all combinations of a case and one value of each axis, for `pytest.mark.parametrize`.

    Case number n is fast with value n of each axis, modulo its length: in as many cases as an axis has values, each of
    its values is fast. All other combinations are slow. With `key`, cases with equal keys share a number.
    """
    combinations, numbers = [], {}
    for case in cases:
        number = numbers.setdefault(key(case) if key else len(numbers), len(numbers))
        fast = tuple(number % len(axis) for axis in axes)
        for indices in product(*(range(len(axis)) for axis in axes)):
            values = (*case, *(axis[index] for axis, index in zip(axes, indices, strict=True)))
            combinations.append(pytest.param(*values, marks=() if indices == fast else pytest.mark.slow))
    return combinations
