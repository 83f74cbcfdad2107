"""Right answers to the exercises, each written differently; the check has to accept them all."""

import functools
from collections.abc import Callable


def by_loops(oracle: Callable) -> Callable:
    """The oracle that the package is held against, in the precision of its first argument."""

    @functools.wraps(oracle)
    def answer(first, *args, **kwargs):
        return oracle(first.double(), *args, **kwargs).to(first.dtype)

    return answer
