"""A right function does not pay for its neighbour's mistake: what is not right is judged once more with the library's.

Only exercises that stand before it in their notebook are lent, here and in grading. So no two functions can each earn
their points with the library's version of the other.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from grpo_lab.course.checking import session
from grpo_lab.course.checking.judging import expectations, judge
from grpo_lab.course.checking.properties import earned
from grpo_lab.course.checking.stand_ins import called, lent, suspended
from grpo_lab.course.checking.verdict import Part, Verdict, summary
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.exercises import earlier
from grpo_lab.course.exercises import exercise as find_exercise
from grpo_lab.course.stub import is_stub


def check(function: Callable, exercise: Exercise | str | None = None, seed: int = 0) -> Verdict:
    """Run `function` on every case of its exercise and say what is right or wrong about it.

    What is not right is tried again with the library's functions in the place of the earlier ones that it calls. If
    that is better, the verdict says so, and whose mistake it is; `properties` are the better ones.

    Args:
        function: what the student wrote.
        exercise: None looks it up by the function's name.
        seed: of the inputs.

    Raises:
        KeyError: if there is no exercise of that name.
    """
    if not isinstance(exercise, Exercise):
        exercise = find_exercise(function if exercise is None else exercise)
    verdict = _judged(function, exercise, seed)
    if not verdict.right:
        with suspended():
            neighbours = _own_neighbours(function, exercise)
        verdict = _told(verdict, function, exercise, seed, neighbours) if neighbours else verdict
    session.add(verdict, exercise, function)
    return verdict


def listed(names: Sequence[str]) -> str:
    """Such as "`a`, `b` and `c`"."""
    *first, last = [f"`{name}`" for name in names]
    return f"{', '.join(first)} and {last}" if first else last


def _own_neighbours(function: Callable, exercise: Exercise) -> dict[str, Callable]:
    """The earlier exercises that the function calls, as far as somebody has written them: stubs are lent anyhow."""
    seen = getattr(function, "__globals__", {})
    reached = called(function, earlier(exercise.name))
    names = [name for name in earlier(exercise.name) if name in reached]
    return {name: seen[name] for name in names if callable(seen.get(name)) and _is_written(name, seen[name])}


def _is_written(name: str, value: object) -> bool:
    return value is not find_exercise(name).function and not is_stub(name, value)


def _told(verdict: Verdict, function: Callable, exercise: Exercise, seed: int, neighbours: dict) -> Verdict:
    again = _judged(function, exercise, seed, list(neighbours))
    points, points_again = (earned(exercise.points, one.properties) for one in (verdict, again))
    if points_again < points or (points_again == points and again.parts == verdict.parts):
        return verdict
    wrong = [name for name, own in neighbours.items() if not _right(name, own, seed)] or list(neighbours)
    are, place = ("are", "their places") if len(wrong) > 1 else ("is", "its place")
    whose = f"It calls your {listed(wrong)}, which {are} not right yet."
    if again.right:
        text = f"{whose} With the library's in {place}, every case comes out right: mend {listed(wrong)} first. "
        text += f"Where work is marked, this costs `{exercise.name}` nothing."
        parts: tuple[Part, ...] = (Part("say", text),)
        shown = replace(verdict, status="wrong", fault="", misconceptions=(), got="", expected="", equation="")
    else:
        text = f"{whose} This is what is left with the library's in {place}:"
        parts, shown = (Part("say", text), *again.parts), again
    return replace(
        shown, parts=parts, message=summary(parts), properties=again.properties, seconds=verdict.seconds + again.seconds
    )


def _right(name: str, own: Callable, seed: int) -> bool:
    exercise = find_exercise(name)
    return _judged(own, exercise, seed, list(_own_neighbours(own, exercise))).right


def _judged(function: Callable, exercise: Exercise, seed: int, names: Collection[str] = ()) -> Verdict:
    """With the library's functions in the place of stubs, and of these names."""
    from grpo_lab.course.checking.run_case import run_student  # here, as `using` and `hint` do not need it

    start = time.perf_counter()
    with suspended(), lent(function, names):
        expected, wrong = expectations(exercise, seed)
        verdict = judge(exercise, run_student(function, exercise, seed), seed, expected, wrong)
    return replace(verdict, seconds=time.perf_counter() - start)
