"""Right answers to the exercises, each written differently; the check has to accept them all."""

import functools
from collections.abc import Callable


def by_loops(oracle: Callable) -> Callable:
    """Return an answer that computes an oracle of the tests in float64, and returns the dtype of its first argument."""

    @functools.wraps(oracle)
    def answer(first, *args, **kwargs):
        return oracle(first.double(), *args, **kwargs).to(first.dtype)

    return answer
