"""How do wrong numbers relate to the right ones? Found from the numbers alone, the telling relations first."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from grpo_lab.course.checking.plain_data import close

_LOOSE = 1e-5  # a relation has to hold this well to be named
SLIGHTLY = (
    "It is off by very little, less than one part in a hundred thousand of the largest number: look for an epsilon "
    "that does not belong there, or for arithmetic in a lower precision."
)


def relations(got: Tensor, expected: Tensor, masks: dict[str, Tensor], tolerance: float) -> tuple[str, ...]:
    """Sentences about two tensors of one shape and dtype that differ, the telling ones first; none if nothing simple
    connects them.

    Of one number, that it is off by a factor or by a constant says nothing: it always is. Such a sentence tells only
    where it holds for several inputs; `of_one_number` gives them.
    """
    if got.dtype == torch.bool:
        return (_of_bools(got, expected),)
    wrong, whole = ~close(got, expected, tolerance), not got.is_floating_point()
    if whole and got.numel() == 1:
        return ()
    got, expected = got.double(), expected.double()
    if trouble := _not_finite(got, expected):
        return (trouble,)
    if _nearly(got, expected):
        return (SLIGHTLY,)
    found = [*_whole(got, expected), *_masked(wrong, expected, masks), *_moved(got, expected), *_by_row(got, expected)]
    return tuple(dict.fromkeys(filter(None, [*found, "" if found else _where(wrong)])))


def of_one_number(got: Tensor, expected: Tensor) -> tuple[str, ...]:
    """What may be said of two single numbers, if it holds for other inputs, too."""
    if got.numel() != 1 or not got.is_floating_point() or not (got.isfinite() & expected.isfinite()).all():
        return ()
    if _nearly(got, expected):
        return ()
    return (*_factor_and_offset(got.double(), expected.double()), *_function_of(got.double(), expected.double()))


def _of_bools(got: Tensor, expected: Tensor) -> str:
    if got.numel() == 1:
        return f"It is {bool(got)}; {bool(expected)} is expected."
    if torch.equal(got, ~expected):
        return "True and False are exchanged everywhere."
    extra, missing = int((got & ~expected).sum()), int((~got & expected).sum())
    parts = [f"{extra} True that should be False"] * bool(extra) + [f"{missing} False that should be True"] * bool(
        missing
    )
    return f"{' and '.join(parts)}, of {got.numel()} entries.".capitalize()


def _not_finite(got: Tensor, expected: Tensor) -> str:
    for word, test in (("NaN", torch.isnan), ("infinity", torch.isinf)):
        for bad, text in (
            (test(got) & ~test(expected), f"{word} stands {{place}}where a number is expected."),
            (test(expected) & ~test(got), f"A number stands {{place}}where {word} is expected."),
        ):
            if bad.any():
                count, first = int(bad.sum()), _index(bad.nonzero()[0])
                return text.format(place=f"in {count} of {got.numel()} entries, first at {first}, " if got.ndim else "")
    return ""


def _whole(got: Tensor, expected: Tensor) -> Iterator[str]:
    """One simple operation takes all of the one to all of the other."""
    if not got.any():
        yield "Everything is zero." if got.numel() > 1 else "Yours is zero."
    if _close(got, -expected):
        yield "The sign is flipped."
    if got.numel() > 1:
        yield from _factor_and_offset(got, expected)
    if got.numel() > 1 and _close(got, expected.abs()):
        yield "The signs are lost: it is the absolute value."
    if got.numel() > 1:
        yield from _function_of(got, expected)


def _function_of(got: Tensor, expected: Tensor) -> Iterator[str]:
    """The numbers of one are a function of those of the other; near 1 each is nearly every other."""
    if expected.numel() > 1 and ((expected.abs() - 1).abs() < 1e-2).all():
        return
    if (expected > 0).all() and _close(got, expected.log()):
        yield "It is the logarithm of what is expected."
    if _close(got.clamp(max=700), expected.clamp(max=700).exp()):
        yield "It is the exponential of what is expected."
    if (expected != 0).all() and _close(got, 1 / expected):
        yield "It is one divided by what is expected."
    if _close(got, 1 - expected):
        yield "It is one minus what is expected."
    if _close(got, expected.square()):
        yield "It is the square of what is expected."
    if (expected >= 0).all() and _close(got, expected.sqrt()):
        yield "It is the square root of what is expected."


def _factor_and_offset(got: Tensor, expected: Tensor) -> Iterator[str]:
    factor = _constant(got, expected)
    if factor is not None and not math.isclose(factor, 1, rel_tol=1e-3) and not math.isclose(factor, -1, rel_tol=1e-9):
        yield f"It is off by a constant factor: {_say_factor(factor)}."
    offset = got - expected
    if offset.numel() and offset.flatten()[0].abs() > _LOOSE and _close(offset, offset.flatten()[0].expand_as(got)):
        yield f"It is off by a constant: {offset.flatten()[0]:+.4g} everywhere."


def _masked(wrong: Tensor, expected: Tensor, masks: dict[str, Tensor]) -> Iterator[str]:
    for name, mask in masks.items():
        if mask.shape == wrong.shape and not mask.all() and mask.any():
            if not wrong[mask].any():
                yield f"It is right except where {name} is False."
            if not wrong[~mask].any() and expected[~mask].unique().numel() > 1:
                yield f"It is right where {name} is False, and wrong only where it is True."


def _moved(got: Tensor, expected: Tensor) -> Iterator[str]:
    """The right numbers in other places."""
    if got.ndim < 1 or got.numel() < 2:
        return
    if got.ndim >= 2 and got.shape[-1] == got.shape[-2] and _close(got, expected.transpose(-1, -2)):
        yield "It is transposed: rows and columns are exchanged."
    for axis in range(got.ndim):
        if got.shape[axis] > 1 and _close(got, expected.flip(axis)):
            yield f"It is reversed along axis {axis}."
        if got.shape[axis] > 2:
            for step, word in ((1, "late"), (-1, "early")):
                kept = slice(1, None) if step == 1 else slice(0, -1)
                if _close(got.movedim(axis, 0)[kept], expected.roll(step, axis).movedim(axis, 0)[kept]):
                    yield f"Everything stands one position too {word} along axis {axis}."
    if _close(got.flatten().sort().values, expected.flatten().sort().values):
        yield "The numbers are right, and stand in other places: look at how rows and columns are laid out."


def _by_row(got: Tensor, expected: Tensor) -> Iterator[str]:
    """A factor or an offset of its own for each row."""
    if got.ndim < 2 or got.shape[-1] < 2 or got.numel() == got.shape[-1]:
        return
    rows = list(zip(got.flatten(0, -2), expected.flatten(0, -2), strict=True))
    if any(_close(g, e) for g, e in rows):
        return  # it is no matter of every row
    factors = [_constant(g, e) for g, e in rows]
    if all(f is not None for f in factors):
        shown = ", ".join(f"{f:.4g}" for f in factors[:4])
        yield f"Each row is off by a factor of its own ({shown}): look at what you divide by."
    if all(_close(g - e, (g - e)[0].expand_as(g)) for g, e in rows):
        yield "Each row is off by a constant of its own: look at what you subtract."


def _where(wrong: Tensor) -> str:
    count, total = int(wrong.sum()), wrong.numel()
    if not wrong.ndim or count == total:
        return ""
    places = ", ".join(_index(place) for place in wrong.nonzero()[:4])
    return f"{total - count} of {total} entries are right; it differs at {places}{' …' if count > 4 else ''}."


def _constant(got: Tensor, expected: Tensor) -> float | None:
    """c with got = c * expected in every single number, however small; None without one, or if it would be 0."""
    largest = expected.abs().argmax() if expected.numel() else None
    if largest is None or expected.flatten()[largest] == 0:
        return None
    factor = float(got.flatten()[largest] / expected.flatten()[largest])
    if not math.isfinite(factor) or factor == 0:
        return None
    noise = 1e-13 * float(got.abs().max())
    return factor if torch.isclose(got, factor * expected, rtol=_LOOSE, atol=noise).all() else None


def _say_factor(factor: float) -> str:
    for base in (2, 10):
        if math.isclose(abs(factor), 1 / math.log(base), rel_tol=_LOOSE):
            return f"{factor:.4g} times what is expected, as if a logarithm had base {base}"
    for over in range(1, 17):
        times = factor * over
        if math.isclose(times, round(times), rel_tol=2 * _LOOSE) and 0 < abs(round(times)) < 1000:
            amount = f"{round(times)}" if over == 1 else f"{round(times)}/{over}"
            return f"{amount} times what is expected"
    return f"{factor:.4g} times what is expected"


def _nearly(got: Tensor, expected: Tensor) -> bool:
    return bool(expected.isfinite().all() and (got - expected).abs().max() <= _LOOSE * expected.abs().max())


def _close(a: Tensor, b: Tensor) -> bool:
    return bool(close(a, b, _LOOSE).all())


def _index(place: Tensor) -> str:
    return f"[{', '.join(map(str, place.tolist()))}]"
