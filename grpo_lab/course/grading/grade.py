"""Mark a folder of submissions: run each behind walls, compare what came back, write marks and a page for everybody.

The mark of an exercise is all its points or none: it counts if the function is right on the inputs that the student
could see (seed 0) and on fresh ones (the seed of this grading), so that nothing written down for the first passes.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from grpo_lab.course.checking import Verdict, judge, not_started
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.exercises import EXERCISES
from grpo_lab.course.grading.sandbox.returned import Result, Returned
from grpo_lab.course.grading.sandbox.run import Limits, Sandbox
from grpo_lab.course.grading.submissions import Submission, find_submissions
from grpo_lab.course.release import assignments
from grpo_lab.course.stub import untouched

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
    """One exercise of one student."""

    exercise: Exercise
    points: int
    status: str
    message: str
    verdict: Verdict | None = None
    hidden: bool = False


@dataclass
class Graded:
    """One notebook of one student, marked. `cells` are the cells that failed, with the reason."""

    submission: Submission
    marks: list[Mark] = field(default_factory=list)
    cells: dict[str, str] = field(default_factory=dict)

    @property
    def points(self) -> int:
        return sum(mark.points for mark in self.marks)


@dataclass
class Grading:
    """A whole run: what was graded, with which seed, and which walls stood (name -> "" or why it did not)."""

    seed: int
    graded: list[Graded]
    walls: dict[str, str]

    @property
    def exercises(self) -> list[Exercise]:
        """All that could be earned: the exercises of every assignment that anybody handed in."""
        names = {name for one in self.graded for name in assignments().get(one.submission.assignment, ())}
        return [exercise for name, exercise in EXERCISES.items() if name in names]

    @property
    def students(self) -> dict[str, list[Graded]]:
        by_name: dict[str, list[Graded]] = {}
        for one in self.graded:
            by_name.setdefault(one.submission.student, []).append(one)
        return dict(sorted(by_name.items()))


def grade(
    folder: Path, seed: int, *, jobs: int = 1, limits: Limits | None = None, hidden: Iterable[Path] = ()
) -> Grading:
    """Mark everything in the folder.

    Args:
        folder: one folder or one notebook a student.
        seed: of the fresh inputs, not 0.
        jobs: notebooks that run at the same time.
        limits: of time and memory.
        hidden: paths that no submission may read, beside the folder, the package and your home.
    """
    if seed == VISIBLE:
        raise ValueError("seed is 0; expected another number, as students know the inputs of seed 0")
    found = find_submissions(folder, assignments())
    with Sandbox(folder, limits or Limits(), hidden) as sandbox, ThreadPoolExecutor(jobs) as pool:
        good = [_Opened(submission) for submission in found if not submission.problem]
        for one in good:
            sandbox.prepare(one.attempted)
        running = {
            pool.submit(sandbox.run, one.submission, one.attempted, [VISIBLE, seed], one.blank): one for one in good
        }
        graded = [Graded(submission) for submission in found if submission.problem]
        for future in as_completed(running):
            graded.append(_mark(running[future], future.result(), seed))
            print(f"{graded[-1].submission.student}: {graded[-1].submission.assignment}", flush=True)
        order = [id(submission) for submission in found]
        graded.sort(key=lambda one: order.index(id(one.submission)))
        return Grading(seed, graded, sandbox.walls)


class _Opened:
    """A readable submission and the exercises of its assignment.

    `blank` names those that nobody has touched: they earn nothing, so the library may stand in for them. `attempted`
    are the others.
    """

    def __init__(self, submission: Submission):
        self.submission = submission
        self.exercises = {name: EXERCISES[name] for name in assignments()[submission.assignment]}
        self.blank = sorted(untouched((cell.source for cell in submission.cells), self.exercises))
        self.attempted = {name: exercise for name, exercise in self.exercises.items() if name not in self.blank}


def _mark(one: _Opened, back: Returned, seed: int) -> Graded:
    marks = [
        mark_exercise(exercise, back.results[name], seed) if name in one.attempted else _not_started(exercise)
        for name, exercise in one.exercises.items()
    ]
    return Graded(one.submission, marks, back.cells)


def _not_started(exercise: Exercise) -> Mark:
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
    if visible.right and fresh.right:
        return Mark(exercise, exercise.points, "right", visible.message, visible)
    if visible.right:
        return Mark(exercise, 0, fresh.status, f"{HARD_CODED}\n{fresh.message}", fresh, hidden=True)
    return Mark(exercise, 0, visible.status, visible.message, visible)
