"""From what came back of a notebook to marks.

A function is judged on the inputs that the student could see (seed 0) and on fresh ones (the seed of this grading), so
that nothing written down for the first passes. What is fulfilled on both earns its share of the points.
"""

from dataclasses import dataclass, field

from grpo_lab.course.checking import Verdict, judge, not_started
from grpo_lab.course.checking.properties import earned, in_both
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.grading.sandbox.returned import Result
from grpo_lab.course.grading.submissions import Submission

VISIBLE = 0
FAULTS = {
    "missing": "The notebook defines no function of this name.",
    "endless": "It did not come to an end within the time limit.",
    "exit": "It ended the whole process.",
    "broken": "The check could not run it.",
    "unreadable": "What it returned could not be taken over.",
    "lost": "No result came back from it.",
    "unreached": "The notebook used up its time before this exercise.",
    "start": "The process for this notebook could not be started: tell your teacher.",
}
HARD_CODED = (
    "Right on the inputs that you see, wrong on others of the same kind. Does it hold only for certain shapes or "
    "numbers? Here is what else was found:"
)


@dataclass(frozen=True)
class Mark:
    """One exercise of one student. note: how it was judged, where that is not as usual."""

    exercise: Exercise
    points: int | float
    status: str
    message: str
    verdict: Verdict | None = None
    hidden: bool = False
    properties: dict[str, bool] = field(default_factory=dict)
    note: str = ""

    @property
    def kind(self) -> str:
        """ "right", "wrong", or "none" for what nobody has begun."""
        return "right" if self.status == "right" else "none" if self.status in ("not started", "missing") else "wrong"


@dataclass
class Graded:
    """One notebook of one student, marked. `cells` are the cells that failed, with the reason."""

    submission: Submission
    marks: list[Mark] = field(default_factory=list)
    cells: dict[str, str] = field(default_factory=dict)

    @property
    def points(self) -> int | float:
        return sum(mark.points for mark in self.marks)


def not_started_mark(exercise: Exercise) -> Mark:
    verdict = not_started(exercise)
    return Mark(exercise, 0, verdict.status, verdict.message, verdict)


def mark_exercise(exercise: Exercise, result: Result, seed: int) -> Mark:
    """From outcomes to points. The student's code is not needed for it, and not there."""
    kind, text = result.fault
    if kind:
        return Mark(exercise, 0, kind, f"{FAULTS[kind]} {text}".strip())
    try:
        visible = judge(exercise, result.outcomes[VISIBLE], VISIBLE)
        fresh = judge(exercise, result.outcomes[seed], seed)
    except Exception as error:  # the outcomes come from a stranger's process: none may end the grading of the others
        return Mark(exercise, 0, "unreadable", f"{FAULTS['unreadable']} {type(error).__name__}: {error}"[:500])
    fulfilled = in_both(visible.properties, fresh.properties)
    if visible.right and fresh.right:
        return Mark(exercise, exercise.points, "right", visible.message, visible, properties=fulfilled)
    points = earned(exercise.points, fulfilled)
    if visible.right:
        message = f"{HARD_CODED}\n{fresh.message}"
        return Mark(exercise, points, fresh.status, message, fresh, hidden=True, properties=fulfilled)
    return Mark(exercise, points, visible.status, visible.message, visible, properties=fulfilled)
