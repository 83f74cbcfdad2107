"""Name the mistake that explains every case; or mistakes that come together, since many wrong answers make two.

Values are looked at before gradients: where a value is wrong, its gradient says nothing new. And a mistake is named
only if nothing speaks against it: wherever it would show, the answer is wrong, and mostly in the same way.
"""

from collections.abc import Callable, Sequence
from functools import partial

from grpo_lab.course.checking.compare import equal, no_gradient, same_gradient
from grpo_lab.course.checking.outcome import Outcome
from grpo_lab.course.checking.plain_data import same
from grpo_lab.course.exercise import Exercise

_MOST = 3
_Agree = Callable[[Outcome, Outcome], bool]


def matching(
    got: Sequence[Outcome], expected: Sequence[Outcome], wrong: dict[str, Sequence[Outcome]], exercise: Exercise
) -> tuple[str, ...]:
    """The misconceptions, in the order of the exercise, that explain every case.

    One explains a case if it differs from the reference there and the outcome equals its own, or if it does not
    differ and the outcome equals the reference's. One that differs nowhere explains nothing.
    """
    return tuple(name for name in wrong if _explains(got, expected, wrong[name], exercise))


def _explains(got: Sequence[Outcome], expected: Sequence[Outcome], wrong: Sequence[Outcome], exercise) -> bool:
    differs = [not equal(w, e, exercise) for w, e in zip(wrong, expected, strict=True)]
    rows = zip(got, expected, wrong, differs, strict=True)
    return any(differs) and all(equal(g, w if differ else e, exercise) for g, e, w, differ in rows)


def likely(
    got: Sequence[Outcome], expected: Sequence[Outcome], wrong: dict[str, Sequence[Outcome]], exercise: Exercise
) -> dict[str, tuple[int, ...]]:
    """The misconceptions that together explain at least half of what is wrong, and the cases that each explains.

    For an answer that `matching` finds no single name for. The one that explains most comes first. Arguments as
    there; `got` may end early, after a fault.
    """
    values = partial(_same_values, tolerance=exercise.tolerance)
    if any(not values(g, e) for g, e in zip(got, expected, strict=False)):
        return _cover(got, expected, wrong, values)
    found: dict[str, tuple[int, ...]] = {}
    for argument in exercise.gradient_of:
        if all(no_gradient(outcome.gradients.get(argument)) for outcome in got):
            continue  # which is said as such: many a mistake has no gradient with some inputs
        gradient = partial(_same_gradient, argument=argument, tolerance=exercise.tolerance)
        found = _cover(got, expected, wrong, gradient) | found
    return dict(sorted(found.items(), key=lambda item: -len(item[1]))[:_MOST])


def _same_values(a: Outcome, b: Outcome, tolerance: float) -> bool:
    if a.fault or b.fault:
        return False
    pairs = ((a.error, b.error), (a.value, b.value), (a.changed, b.changed), (a.observed, b.observed))
    return all(same(x, y, tolerance) for x, y in pairs)


def _same_gradient(a: Outcome, b: Outcome, argument: str, tolerance: float) -> bool:
    return same_gradient(a.gradients.get(argument), b.gradients.get(argument), tolerance)


def _cover(got, expected, wrong: dict[str, Sequence[Outcome]], agree: _Agree) -> dict[str, tuple[int, ...]]:
    """Choose the mistake that explains most, then the one that explains most of the rest, and so on."""
    failing = {i for i in range(len(got)) if not agree(got[i], expected[i])}
    explains = {}
    for name, outcomes in wrong.items():
        shows = {i for i in range(len(got)) if not agree(outcomes[i], expected[i])}
        same_there = {i for i in shows if agree(got[i], outcomes[i])}
        if shows <= failing and 2 * len(same_there) >= len(shows):
            explains[name] = same_there
    chosen, left = {}, set(failing)
    while left and len(chosen) < _MOST:
        best = max(explains, key=lambda name: len(left & explains[name]), default=None)
        if best is None or not left & explains[best]:
            break
        chosen[best] = tuple(sorted(left & explains[best]))
        left -= explains.pop(best)
    return chosen if 2 * len(left) <= len(failing) else {}
