"""What has been checked in this session: the last verdict of each exercise, and how often it was tried."""

from collections.abc import Callable
from dataclasses import dataclass

from grpo_lab.course.checking.verdict import Verdict
from grpo_lab.course.exercise import Exercise


@dataclass
class Entry:
    exercise: Exercise
    verdict: Verdict
    function: Callable
    attempts: int = 0
    solved: bool = False


ENTRIES: dict[str, Entry] = {}


def add(verdict: Verdict, exercise: Exercise, function: Callable) -> None:
    """A check of a function that is not written yet is no attempt."""
    tried = verdict.status != "not started"
    entry = ENTRIES.setdefault(exercise.name, Entry(exercise, verdict, function))
    entry.exercise, entry.verdict, entry.function = exercise, verdict, function
    entry.attempts, entry.solved = entry.attempts + tried, entry.solved or verdict.right


def clear() -> None:
    ENTRIES.clear()


def finished() -> dict[str, Callable]:
    """The functions whose last check in this session said right, by name: `with using(**finished()): ...`."""
    return {name: entry.function for name, entry in ENTRIES.items() if entry.verdict.right}
