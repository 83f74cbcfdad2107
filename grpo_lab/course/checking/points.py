"""What is right about an answer, property by property, and its share of the points.

Right values come first: without them nothing else counts, as an answer that returns zeros is stable, too.
"""

from collections.abc import Sequence

from grpo_lab.course.checking.compare import equal, equal_gradients, equal_values
from grpo_lab.course.checking.outcome import Outcome
from grpo_lab.course.exercise import Exercise

WORDS = {"values": "values", "gradients": "gradients", "stability": "large and extreme inputs"}
OF_VALUES = 0.6  # of the points; the other properties share the rest alike


def properties(exercise: Exercise, outcomes: Sequence[Outcome], expected: Sequence[Outcome]) -> dict[str, bool]:
    """Which of the properties that this exercise asks for hold. `outcomes` may end early, after a fault."""
    missing = [Outcome(fault="unreached")] * (len(expected) - len(outcomes))
    rows = list(zip(exercise.cases, [*outcomes, *missing], expected, strict=True))
    simple = [(got, right) for case, got, right in rows if case.tests == "values"]
    extreme = [(got, right) for case, got, right in rows if case.tests == "stability"]
    found = {"values": all(equal_values(got, right, exercise) for got, right in simple)}
    if exercise.gradient_of:
        found["gradients"] = all(equal_gradients(got, right, exercise) for got, right in simple)
    if extreme:  # gradients that are wrong everywhere cost their own share only
        agree = equal if found.get("gradients", True) else equal_values
        found["stability"] = all(agree(got, right, exercise) for got, right in extreme)
    return {name: holds and found["values"] for name, holds in found.items()}


def earned(points: int, found: dict[str, bool]) -> int | float:
    """The points for the properties that hold."""
    if not found.get("values"):
        return 0
    others = [holds for name, holds in found.items() if name != "values"]
    share = OF_VALUES + (1 - OF_VALUES) * sum(others) / len(others) if others else 1.0
    part = round(points * share, 1)
    return int(part) if part == int(part) else part


def in_words(found: dict[str, bool]) -> str:
    """Such as "values ✓, gradients ✗"."""
    return ", ".join(f"{WORDS[name]} {'✓' if holds else '✗'}" for name, holds in found.items())
