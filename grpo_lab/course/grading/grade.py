"""Mark a folder of submissions: run each in a sandbox, and compare what came back.

One notebook costs only its author: whatever happens with it, in reading, running or comparing, becomes an entry of its
own. A function is judged on the inputs that the student could see (seed 0) and on fresh ones (the seed of this
grading), so that nothing written down for the first passes.
"""

import json
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from grpo_lab.commands.checks import InputError
from grpo_lab.course.checking import Verdict, judge, worth
from grpo_lab.course.checking.verdict import Part
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.grading.collect import find_submissions
from grpo_lab.course.grading.downloads import Submission
from grpo_lab.course.grading.notebook import Cell
from grpo_lab.course.grading.runner import MISSING
from grpo_lab.course.grading.sandbox import Answers, Failures, Sandbox
from grpo_lab.course.grading.walls import private_places, strongest_wall
from grpo_lab.course.release import of_notebook

VISIBLE = 0
HARD_CODED = (
    "Right on the inputs that you see, wrong on others of the same kind. Does it hold only for certain shapes or "
    "numbers? Here is what else was found:"
)


@dataclass
class Graded:
    """What one student handed in, marked: points and verdict by exercise; and why cells failed, by their numbers.

    seed: of the fresh inputs that it was marked with.
    """

    submission: Submission
    points: dict[str, int | float]
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    cells: Failures = field(default_factory=dict)
    seed: int = 0

    @property
    def total(self) -> int | float:
        return round(sum(self.points.values()), 2)

    @property
    def notes(self) -> list[str]:
        """What there is to say of what was handed in."""
        one = self.submission
        return [f"{one.file}: {one.problem}".removeprefix(": ")] * bool(one.problem) + one.notes

    @property
    def remarks(self) -> list[str]:
        """All that there is to say beside the points."""
        return [*self.notes, *(f"cell {number} failed" for number in self.cells)]

    def state(self, exercise: Exercise) -> str:
        """ "right", "partly", "wrong", or "none" for what nobody has begun."""
        verdict = self.verdicts.get(exercise.name)
        if verdict is None or verdict.status == "not started":
            return "none"
        points = self.points[exercise.name]
        return "right" if points == exercise.points else "partly" if points else "wrong"


@dataclass
class Grading:
    """A class, marked: the assignment (its file stem), seed and wall of the last run, and every student."""

    assignment: str
    seed: int
    wall: str
    students: list[Graded]

    @classmethod
    def read(cls, file: Path) -> "Grading":
        """What an earlier run wrote, as `as_json` makes it.

        Raises:
            InputError: for a file that this is not.
        """
        try:
            whole = json.loads(file.read_text(encoding="utf-8"))
            return cls(**whole | {"students": [_graded(one) for one in whole["students"]]})
        except (ValueError, KeyError, TypeError) as error:
            what = f"is {str(file)!r}, which no grading wrote ({type(error).__name__})"
            raise InputError("output", file, "name another folder, or move it away", found=what) from error

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    def merged(self, earlier: "Grading") -> "Grading":
        """With those who were graded earlier and not now: who is graded again takes the place of what was."""
        now = {(one.submission.student, one.submission.number) for one in self.students}
        kept = [one for one in earlier.students if (one.submission.student, one.submission.number) not in now]
        students = sorted([*kept, *self.students], key=lambda one: one.submission.student.casefold())
        return replace(self, students=students)

    @property
    def exercises(self) -> dict[str, Exercise]:
        return of_notebook(self.assignment[:2])

    @property
    def out_of(self) -> int:
        return sum(exercise.points for exercise in self.exercises.values())

    @property
    def handed_in(self) -> list[Graded]:
        return [one for one in self.students if not one.submission.problem]


def grade(
    folder: Path,
    seed: int,
    *,
    assignment: str | None = None,
    jobs: int = 1,
    seconds: float = 30.0,
    trust: bool = False,
    hidden: Iterable[Path] = (),
    progress: Callable[[int, int], None] = lambda marked, of: None,
) -> Grading:
    """Mark everything in the folder. An interrupt ends all that runs; nothing is written here.

    Args:
        folder: one folder, notebook or archive a student; or a zip archive of a class.
        seed: of the fresh inputs, not 0.
        assignment: such as "02"; None means the one that most students handed in.
        jobs: notebooks that run at the same time.
        seconds: for a cell and for an exercise.
        trust: run without a sandbox where there is none.
        hidden: paths that no submission may read, beside the folder, the package and your home.
        progress: called with (marked, of how many).

    Raises:
        ValueError: for a folder in which nobody has handed in anything, and for an unknown assignment; and where there
            is neither a sandbox nor trust.
    """
    stem, found = find_submissions(folder, assignment)
    done: dict[int, Graded] = {}
    exercises, unseen = of_notebook(stem[:2]), [folder, *hidden, *private_places()]
    with Sandbox(exercises, strongest_wall(trust), seconds, unseen) as sandbox:
        with ThreadPoolExecutor(jobs) as pool:
            running = {pool.submit(_run, one, sandbox, seed): index for index, one in enumerate(found)}
            try:
                for future in as_completed(running):
                    index = running[future]
                    done[index] = _marked(found[index], future, exercises, seed)
                    progress(len(done), len(found))
            except BaseException:
                sandbox.stop()
                pool.shutdown(cancel_futures=True)
                raise
    return Grading(stem, seed, sandbox.wall, [done[index] for index in range(len(found))])


def _run(one: Submission, sandbox: Sandbox, seed: int) -> tuple[Answers, Failures]:
    return ({}, {}) if one.problem else sandbox.run(one.cells, [VISIBLE, seed])


def _marked(one: Submission, future: Future, exercises: dict[str, Exercise], seed: int) -> Graded:
    """One notebook, marked. Whatever goes wrong is said of this notebook alone."""
    nothing: dict[str, int | float] = dict.fromkeys(exercises, 0)
    try:
        answers, failed = future.result()
        if one.problem:
            return Graded(one, nothing)
        answers = {name: _missing(one, name, answer, failed) for name, answer in answers.items()}
        marks = {name: mark(exercise, answers[name], seed) for name, exercise in exercises.items()}
    except Exception as error:
        one.problem = f"it could not be graded ({type(error).__name__}: {str(error)[:300]}): tell your teacher"
        return Graded(one, nothing)
    points = {name: points for name, (points, _) in marks.items()}
    return Graded(one, points, {name: verdict for name, (_, verdict) in marks.items()}, failed, seed)


def _missing(one: Submission, name: str, answer: dict[int, list] | str, failed: Failures) -> dict[int, list] | str:
    """Where there is no function of this name: why its cell failed, or which other it defines."""
    for cell in one.cells if answer == MISSING else ():
        if cell.exercise == name and str(cell.number) in failed:
            return f"Its cell failed: {failed[str(cell.number)]}"
        if cell.exercise == name and cell.defines:
            return f"You defined `{cell.defines[-1]}`; expected a function named `{name}`."
    return answer


def _graded(one: dict) -> Graded:
    """As it was before `asdict`."""
    handed_in = one["submission"]
    submission = Submission(**handed_in | {"cells": [Cell(**cell) for cell in handed_in["cells"]]})
    verdicts = {name: _verdict(verdict) for name, verdict in one["verdicts"].items()}
    return Graded(**one | {"submission": submission, "verdicts": verdicts})


def _verdict(one: dict) -> Verdict:
    parts = {name: tuple(Part(**part) for part in one[name]) for name in ("parts", "more")}
    return Verdict(**one | parts | {"misconceptions": tuple(one["misconceptions"])})


def mark(exercise: Exercise, answer: dict[int, list] | str, seed: int) -> tuple[int | float, Verdict]:
    """From outcomes to points. The student's code is not needed for it, and not there.

    answer: as in `Answers`.
    """
    try:
        if isinstance(answer, str):
            return 0, _said(exercise, "not started" if answer == MISSING else "form", answer)
        visible, fresh = (judge(exercise, answer[one], one) for one in (VISIBLE, seed))
        points = worth(visible, fresh)
    except Exception as error:  # the outcomes come from a stranger's process: none may end the grading of the others
        why = f"What it returned could not be judged: {type(error).__name__}: {error}"
        return 0, _said(exercise, "form", why[:500])
    if visible.right and not fresh.right:
        said = _said(exercise, fresh.status, f"{HARD_CODED}\n{fresh.message}")  # nothing of the fresh inputs is shown
        return points, replace(said, fault=fresh.fault, misconceptions=fresh.misconceptions)
    return points, visible


def _said(exercise: Exercise, status: str, text: str) -> Verdict:
    parts = tuple(Part("say", line) for line in text.splitlines() if line.strip())
    return Verdict(exercise.name, status, parts, fault="stopped" if status == "form" else "")
