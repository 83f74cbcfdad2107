"""Relations between wrong and right numbers, such as a constant factor, found from the numbers alone."""

import math
from collections.abc import Iterator
from fractions import Fraction

import torch
from torch import Tensor

from grpo_lab.base.language import Phrase, fill
from grpo_lab.course.checking.compare import close_entries

RELATION_TOLERANCE = 1e-5  # the relative tolerance within which a relation has to hold
SLIGHTLY = (
    "It is off by very little, less than one part in a hundred thousand of the largest number: look for an epsilon "
    "that does not belong there, or for arithmetic in a lower precision."
)
TINY = (
    "It is a very small number where exactly 0 is expected: look for an epsilon that does not belong there, or for "
    "what is left over by rounding."
)
ZERO = "It is 0, and another number is expected."


def relation_of_tensors(got: Tensor, expected: Tensor, tolerance: float) -> str:
    """Return a sentence on how two tensors of one shape and dtype differ; "" if they have no simple relation."""
    if got.dtype == torch.bool and got.numel() > 1 and torch.equal(got, ~expected):
        return "True and False are exchanged everywhere."
    is_wrong, is_float = ~close_entries(got, expected, tolerance), got.is_floating_point()
    got, expected = got.double(), expected.double()
    for word, test in (("NaN", torch.isnan), ("infinity", torch.isinf)):
        if (test(got) & ~test(expected)).any():
            return fill("There is {0} where a number is expected.", word)
        if (test(expected) & ~test(got)).any():
            return fill("There is a number where {0} is expected.", word)
    if is_float and (got - expected).abs().max() <= RELATION_TOLERANCE * expected.abs().max():
        return SLIGHTLY
    if is_float and not expected.any() and got.abs().max() <= RELATION_TOLERANCE:
        return TINY
    right = fill("{0} of {1} entries are right.", int((~is_wrong).sum()), is_wrong.numel())
    partly_right = "" if is_wrong.all() else Phrase(right, " ", _positions(is_wrong))
    if not is_float:
        return partly_right
    if len(got.unique()) == len(expected.unique()) == 1:  # equal entries tell no more than a single number
        got, expected = got.flatten()[:1], expected.flatten()[:1]
    return relation_everywhere(got, expected) or partly_right


def _positions(is_wrong: Tensor) -> str:
    """Return a sentence on the positions of wrong entries: the index that they share along an axis, or the first."""
    indices = is_wrong.nonzero()
    for axis in range(is_wrong.ndim):
        if is_wrong.shape[axis] > 1 and len(indices) > 1 and len(indices[:, axis].unique()) == 1:
            return fill("All wrong ones have index {0} along axis {1}.", int(indices[0, axis]), axis)
    return fill("The first wrong one is at {0}.", indices[0].tolist())


def relation_everywhere(got: Tensor, expected: Tensor) -> str:
    """Return a sentence on a simple relation that holds for all numbers of two tensors; "" if there is none."""
    if not (got.isfinite() & expected.isfinite()).all():
        return ""
    return next(_operations(got, expected), "")


def _operations(got: Tensor, expected: Tensor) -> Iterator[str]:
    """Yield the sentences that hold for all numbers.

    Factors and offsets are skipped for a single number, because it always has one.
    """
    if not got.any():
        yield ZERO if got.numel() == 1 else "Everything is zero: do the arguments enter it, or do all terms cancel?"
    if _close(got, -expected):
        yield "The sign is flipped."
    if got.numel() > 1:
        constant, offset = constant_factor(got, expected), (got - expected).flatten()
        if constant is not None and abs(constant - 1) > 1e-3:
            yield fill("It is off by a constant factor: {0}.", _say_factor(constant))
        if abs(offset[0]) > RELATION_TOLERANCE and _close(offset, offset[:1].expand_as(offset)):
            yield fill("It is off by a constant: {0} everywhere.", f"{offset[0]:+.4g}")


def constant_factor(got: Tensor, expected: Tensor) -> float | None:
    """Return the factor c with got = c * expected for every number; None if there is none, or if it is 0."""
    largest = expected.abs().argmax()
    factor = float(got.flatten()[largest] / expected.flatten()[largest])
    if not math.isfinite(factor) or factor == 0:
        return None
    noise = 1e-13 * float(got.abs().max())
    return factor if torch.isclose(got, factor * expected, rtol=RELATION_TOLERANCE, atol=noise).all() else None


def _say_factor(factor: float) -> str:
    simple = Fraction(factor).limit_denominator(16)
    exact = simple and math.isclose(simple, factor, rel_tol=2 * RELATION_TOLERANCE)
    return fill("{0} times what is expected", simple if exact else format(factor, ".4g"))


def _close(a: Tensor, b: Tensor) -> bool:
    return bool(close_entries(a, b, RELATION_TOLERANCE).all())
