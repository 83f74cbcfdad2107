"""What an answer has to be, property by property, and the share of the points that each is worth.

Right values come first: without them nothing else counts, as an answer that returns zeros is stable, too.
"""

import math
from collections.abc import Iterable, Sequence

from grpo_lab.course.checking.compare import equal, equal_gradients, equal_values
from grpo_lab.course.checking.outcome import Outcome
from grpo_lab.course.exercise import Exercise

WORDS = {
    "values": "values",
    "gradients": "gradients",
    "stability": "large and extreme inputs",
    "device": "any device",
}
OF_VALUES = 0.6  # of the points; the other properties share the rest alike


def properties(exercise: Exercise, outcomes: Sequence[Outcome], expected: Sequence[Outcome]) -> dict[str, bool]:
    """Which of the properties that this exercise has are fulfilled. `outcomes` may end early, after a fault."""
    found: dict[str, list[bool]] = {}
    stable_values: list[bool] = []
    for index, (case, right) in enumerate(zip(exercise.cases, expected, strict=True)):
        got = outcomes[index] if index < len(outcomes) else Outcome(fault="unreached")
        if case.tests == "stability":
            stable_values.append(equal_values(got, right, exercise))
        if case.tests != "values":
            found.setdefault(case.tests, []).append(equal(got, right, exercise))
            continue
        found.setdefault("values", []).append(equal_values(got, right, exercise))
        if exercise.gradient_of and not right.error:
            found.setdefault("gradients", []).append(not got.error and equal_gradients(got, right, exercise))
        if not right.device:
            found.setdefault("device", []).append(not got.device or got.device.startswith("unknown"))
    fulfilled = {name: all(found[name]) for name in WORDS if name in found}
    if not fulfilled.get("gradients", True):  # which fail everywhere then, and cost their own share
        fulfilled |= {"stability": all(stable_values)} if stable_values else {}
    return {name: fine and fulfilled["values"] for name, fine in fulfilled.items()}


def earned(points: int, fulfilled: dict[str, bool]) -> int | float:
    """The points for what is fulfilled, in halves, rounded down; all of them for everything, none for nothing."""
    if fulfilled and all(fulfilled.values()):
        return points
    others = [fine for name, fine in fulfilled.items() if name != "values"]
    share = OF_VALUES + (1 - OF_VALUES) * sum(others) / max(len(others), 1) if fulfilled.get("values") else 0.0
    halves = math.floor(2 * points * share + 1e-9) / 2
    return int(halves) if halves == int(halves) else halves


def in_words(fulfilled: dict[str, bool]) -> str:
    """Such as "values ✓, gradients ✗"."""
    return ", ".join(f"{WORDS[name]} {'✓' if fine else '✗'}" for name, fine in fulfilled.items())


def in_both(first: dict[str, bool], second: dict[str, bool]) -> dict[str, bool]:
    """Fulfilled on the inputs of both; nothing, if one of them was not judged by its properties."""
    if not (first and second):
        return {}
    names: Iterable[str] = (name for name in WORDS if name in first or name in second)
    return {name: first.get(name, True) and second.get(name, True) for name in names}
