"""Name mistakes that come together. Many wrong answers make two, and then no single one explains every case.

Values are looked at before gradients: where a value is wrong, its gradient says nothing new. And a mistake is named
only if nothing speaks against it: wherever it would show, the answer is wrong.
"""

from collections.abc import Callable, Sequence
from functools import partial

from grpo_lab.course.checking.compare import same_gradient
from grpo_lab.course.checking.outcome import Outcome
from grpo_lab.course.checking.plain_data import same
from grpo_lab.course.exercise import Exercise

_MOST = 3
_Agree = Callable[[Outcome, Outcome], bool]


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
        if shows <= failing:
            explains[name] = {i for i in shows if agree(got[i], outcomes[i])}
    chosen, left = {}, set(failing)
    while left and len(chosen) < _MOST:
        best = max(explains, key=lambda name: len(left & explains[name]), default=None)
        if best is None or not left & explains[best]:
            break
        chosen[best] = tuple(sorted(left & explains[best]))
        left -= explains.pop(best)
    return chosen if 2 * len(left) <= len(failing) else {}
