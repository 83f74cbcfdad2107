"""Right answers to the exercises, each written differently; the check has to accept them all."""

import functools
from collections.abc import Callable


def by_loops(oracle: Callable) -> Callable:
    """Return an answer that calls an oracle of the tests in float64, and casts to the dtype of the first argument."""

    @functools.wraps(oracle)
    def answer(first, *args, **kwargs):
        return oracle(first.double(), *args, **kwargs).to(first.dtype)

    return answer
