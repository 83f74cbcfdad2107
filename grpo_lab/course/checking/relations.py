"""How do wrong numbers relate to the right ones? Found from the numbers alone."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from grpo_lab.course.checking.compare import close

_LOOSE = 1e-5  # a relation has to hold this well to be named
SLIGHTLY = (
    "It is off by very little, less than one part in a hundred thousand of the largest number: look for an epsilon "
    "that does not belong there, or for arithmetic in a lower precision."
)


def relation(got: Tensor, expected: Tensor, masks: dict[str, Tensor], tolerance: float) -> str:
    """A sentence about two tensors of one shape and dtype that differ; "" if nothing simple connects them."""
    if got.dtype == torch.bool and got.numel() > 1 and torch.equal(got, ~expected):
        return "True and False are exchanged everywhere."
    wrong, whole = ~close(got, expected, tolerance), not got.is_floating_point()
    got, expected = got.double(), expected.double()
    if found := _not_finite(got, expected):
        return found
    if not whole and (got - expected).abs().max() <= _LOOSE * expected.abs().max():
        return SLIGHTLY
    found = ["" if whole else everywhere(got, expected), *_masked(wrong, masks), _where(wrong)]
    return next(filter(None, found), "")


def everywhere(got: Tensor, expected: Tensor) -> str:
    """One simple operation that takes all of the one to all of the other; "" if there is none."""
    return next(_operations(got, expected), "") if (got.isfinite() & expected.isfinite()).all() else ""


def _not_finite(got: Tensor, expected: Tensor) -> str:
    for word, test in (("NaN", torch.isnan), ("infinity", torch.isinf)):
        for wrong, text in (
            (test(got) & ~test(expected), f"{word} stands {{place}}where a number is expected."),
            (test(expected) & ~test(got), f"A number stands {{place}}where {word} is expected."),
        ):
            if wrong.any():
                count, first = int(wrong.sum()), _index(wrong.nonzero()[0])
                return text.format(place=f"in {count} of {got.numel()} entries, first at {first}, " if got.ndim else "")
    return ""


def _operations(got: Tensor, expected: Tensor) -> Iterator[str]:
    """Of a single number, that it is off by a factor or a constant says nothing: it always is."""
    if not got.any():
        yield "It is zero." if got.numel() == 1 else "Everything is zero."
    if _close(got, -expected):
        yield "The sign is flipped."
    if got.numel() > 1:
        factor, offset = _constant(got, expected), (got - expected).flatten()
        if factor is not None and abs(factor - 1) > 1e-3 and factor != -1:
            yield f"It is off by a constant factor: {_say_factor(factor)}."
        if abs(offset[0]) > _LOOSE and _close(offset, offset[:1].expand_as(offset)):
            yield f"It is off by a constant: {offset[0]:+.4g} everywhere."
        if got.ndim > 1 and got.shape[-1] == got.shape[-2] and _close(got, expected.transpose(-1, -2)):
            yield "It is transposed: rows and columns are exchanged."


def _masked(wrong: Tensor, masks: dict[str, Tensor]) -> Iterator[str]:
    for name, mask in masks.items():
        if mask.shape == wrong.shape and mask.any() and not mask.all() and not wrong[mask].any():
            yield f"It is right except where {name} is False."


def _where(wrong: Tensor) -> str:
    count, total = int(wrong.sum()), wrong.numel()
    if not wrong.ndim or count == total:
        return ""
    places = ", ".join(_index(place) for place in wrong.nonzero()[:4])
    return f"{total - count} of {total} entries are right; it differs at {places}{' …' if count > 4 else ''}."


def _constant(got: Tensor, expected: Tensor) -> float | None:
    """c with got = c * expected in every single number, however small; None without one, or if it would be 0."""
    largest = expected.abs().argmax()
    factor = float(got.flatten()[largest] / expected.flatten()[largest])
    if not math.isfinite(factor) or factor == 0:
        return None
    noise = 1e-13 * float(got.abs().max())
    return factor if torch.isclose(got, factor * expected, rtol=_LOOSE, atol=noise).all() else None


def _say_factor(factor: float) -> str:
    for over in range(1, 17):
        times = factor * over
        if math.isclose(times, round(times), rel_tol=2 * _LOOSE) and 0 < abs(round(times)) < 1000:
            return f"{round(times)}{f'/{over}' if over > 1 else ''} times what is expected"
    return f"{factor:.4g} times what is expected"


def _close(a: Tensor, b: Tensor) -> bool:
    return bool(close(a, b, _LOOSE).all())


def _index(place: Tensor) -> str:
    return f"[{', '.join(map(str, place.tolist()))}]"
