"""Check the types and shapes of a function's arguments and result in each call."""

import functools
from collections.abc import Callable

import beartype
import jaxtyping

_checked = beartype.beartype(conf=beartype.BeartypeConf(violation_type=jaxtyping.TypeCheckError))  # a TypeError
_one_call = jaxtyping.jaxtyped("context")  # within it, a name such as T is one length


def checks_shapes(function: Callable) -> Callable:
    """Return the function with its arguments and its result checked, unless jaxtyping is disabled.

    jaxtyping's own decorator checks the arguments a second time, with the result, and binds each call to the signature.
    That would take a fifth of a test that trains.
    """
    checked = _checked(function)

    @functools.wraps(function)
    def call(*args, **kwargs):
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        with _one_call:
            return checked(*args, **kwargs)

    return call
