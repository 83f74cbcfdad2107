"""Error carried forward: a function that is not right is judged once more with the library's neighbours.

The second run is one of its own, with a package in which the library has the exercises before this one, as it has those
that nobody touched; this one and those behind it are missing as ever. Only this one's outcomes are taken from it.
"""

from collections.abc import Callable
from dataclasses import replace

from grpo_lab.course.checking.carried import listed
from grpo_lab.course.exercises import earlier
from grpo_lab.course.grading.marks import Mark


def carry_forward(marks: list[Mark], calls: dict[str, set[str]], again: Callable[[str], Mark]) -> list[Mark]:
    """The marks, each the better of two where a function calls another one that is not right.

    Args:
        marks: in the order of the exercises.
        calls: whom each function calls, of those that somebody has written.
        again: judges the exercise of that name with the library's functions for the earlier ones.
    """
    done: dict[str, Mark] = {}
    for mark in marks:
        name = mark.exercise.name
        reached = _reached(name, calls)
        wrong = [one for one in earlier(name) if one in reached and one in done and done[one].status != "right"]
        judged_twice = wrong and mark.status not in ("right", "missing")
        done[name] = _better(mark, again(name), wrong) if judged_twice else mark
    return list(done.values())


def _reached(name: str, calls: dict[str, set[str]]) -> set[str]:
    reached, waiting = set(), [name]
    while waiting:
        new = calls.get(waiting.pop(), set()) - reached
        reached |= new
        waiting += new
    return reached


def _better(mark: Mark, again: Mark, wrong: list[str]) -> Mark:
    """At equal points the second: what it says is about this function alone."""
    if again.verdict is None or again.points < mark.points:
        return mark
    are = "yours are" if len(wrong) > 1 else "yours is"
    return replace(again, note=f"Judged with the library's {listed(wrong)}, since {are} not right yet.")
