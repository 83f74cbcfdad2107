"""Mark a folder of submissions: run each behind walls, compare what came back, keep every mark as soon as it is there.

One notebook costs only its author: whatever happens with it, in reading, running or comparing, becomes an entry of its
own, and an interrupted grading goes on where it stopped.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from grpo_lab.course.exercise import Exercise
from grpo_lab.course.exercises import EXERCISES, earlier
from grpo_lab.course.grading.carried import carry_forward
from grpo_lab.course.grading.counted import stems_of, that_count
from grpo_lab.course.grading.marks import VISIBLE, Graded, Mark, mark_exercise, not_started_mark
from grpo_lab.course.grading.people import Person, meant, who
from grpo_lab.course.grading.records import Records
from grpo_lab.course.grading.sandbox.returned import Returned
from grpo_lab.course.grading.sandbox.run import Limits, Sandbox
from grpo_lab.course.grading.submissions import Submission, find_submissions
from grpo_lab.course.release import assignments
from grpo_lab.course.stub import untouched

LOOK = 0.5  # seconds between looks for an interrupt
INTERRUPTED = "not graded yet: the grading was interrupted"


@dataclass
class Grading:
    """A whole run: what was graded, with which seed, and which walls stood (name -> "" or why it did not).

    assignments: those that it is about. finished: False if it was interrupted. before: the points of those who were
    graded again, as they were; empty for those who had none yet. doubts: what the teacher should look at before the
    marks go anywhere.
    """

    seed: int
    graded: list[Graded]
    walls: dict[str, str]
    assignments: list[str]
    finished: bool = True
    before: dict[str, dict[str, int]] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)

    @property
    def exercises(self) -> list[Exercise]:
        """All that could be earned."""
        names = {name for assignment in self.assignments for name in assignments()[assignment]}
        return [exercise for name, exercise in EXERCISES.items() if name in names]

    @property
    def out_of(self) -> int:
        return sum(exercise.points for exercise in self.exercises)

    @property
    def students(self) -> dict[str, list[Graded]]:
        """By name, in one line; those whose names would be alike have the platform's numbers behind them, or a 2."""
        own: dict[tuple[str, str], list[Graded]] = {}
        for one in self.graded:
            own.setdefault((one.submission.student, one.submission.number), []).append(one)
        numbers = Counter(name for name, _ in own)
        by_name: dict[str, list[Graded]] = {}
        for (name, number), graded in sorted(own.items(), key=lambda item: item[0]):
            label = " ".join(name.split()) + (f" ({number})" if numbers[name] > 1 else "")
            by_name[next(free for free in _alternatives(label) if free not in by_name)] = graded
        return dict(sorted(by_name.items()))


def _alternatives(label: str) -> Iterator[str]:
    yield label
    yield from (f"{label} {n}" for n in count(2))


def grade(
    folder: Path,
    seed: int,
    *,
    jobs: int = 1,
    limits: Limits | None = None,
    hidden: Iterable[Path] = (),
    records: Records | None = None,
    resume: bool = False,
    only: Iterable[str] = (),
    roster: Iterable[Person] = (),
    assignment: str | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Grading:
    """Mark everything in the folder.

    Args:
        folder: one folder, notebook or archive a student; or a zip archive of a class.
        seed: of the fresh inputs, not 0.
        jobs: notebooks that run at the same time.
        limits: of time and memory.
        hidden: paths that no submission may read, beside the folder, the package and your home.
        records: where marks are kept as they come; None keeps none.
        resume: take what `records` has of the same files, seed and version.
        only: grade these students again and take the marks of all others from `records`, whatever they hand in now; by
            name, or by the id or e-mail address that the roster has.
        roster: the class.
        assignment: "02", or several, "02,05"; None means what `that_count` makes of the folder.
        progress: called with (marked, of how many, student).

    Raises:
        ValueError: for seed 0, for a folder in which nobody has handed in anything, and for a name in `only` of
            somebody who has not. Nothing is written then.
    """
    if seed == VISIBLE:
        raise ValueError("seed is 0; expected another number, as students know the inputs of seed 0")
    found = find_submissions(folder, assignments())
    if not found:
        raise ValueError(f"folder is {folder}; expected one folder or notebook a student, and found none")
    found, counted = that_count(found, stems_of(assignment, assignments()))
    again = _again(found, list(only), list(roster))
    class_ = _Class(found, seed, records, resume, again)
    with Sandbox(folder, limits or Limits(), hidden) as sandbox:
        class_.run(sandbox, jobs, progress)
        if records is not None and class_.finished:
            records.end(seed)
        return Grading(seed, class_.graded, sandbox.walls, counted, class_.finished, class_.before)


def _again(found: list[Submission], only: list[str], roster: list[Person]) -> set[int]:
    """Which submissions are those of the students that are to be graded again."""
    people = [who(submission, roster) if only and roster else None for submission in found]
    again: set[int] = set()
    for wanted in only:
        its = {i for i, submission in enumerate(found) if meant(wanted, submission, people[i])}
        if not its:
            raise ValueError(f"only has {wanted!r}, who handed in nothing; expected names, ids or e-mail addresses")
        again |= its
    return again


class _Class:
    """All submissions of a class on their way to being marked."""

    def __init__(self, found: list[Submission], seed: int, records: Records | None, resume: bool, only: set[int]):
        self.found, self.seed, self.records = found, seed, records
        self.done: dict[int, Graded] = {}
        self.before: dict[str, dict[str, int]] = {}
        self.finished = True
        if records is not None:
            records.begin(seed, anew=not (resume or only))
        for index, submission in enumerate(found):
            self._from_before(index, submission, resume, only)

    def _from_before(self, index: int, submission: Submission, resume: bool, only: set[int]) -> None:
        if submission.problem:
            self.done[index] = Graded(submission)
            return
        if self.records is None or not (resume or only):
            return
        earlier = self.records.find(submission, self.seed, even_if_changed=bool(only))
        if earlier and index not in only:
            self.done[index] = earlier
        elif only:
            points = {mark.exercise.name: mark.points for mark in earlier.marks} if earlier else {}
            self.before.setdefault(submission.student, {}).update(points)

    def run(self, sandbox: Sandbox, jobs: int, progress) -> None:
        with ThreadPoolExecutor(jobs) as pool:
            running: dict[Future, int] = {}
            try:
                for index in self._in_turn():
                    running[pool.submit(_graded, self.found[index], sandbox, self.seed)] = index
                self._gather(running, progress)
            except KeyboardInterrupt:
                self.finished = False
                ready = [one for one in running if one.done() and not one.cancelled() and not one.exception()]
                sandbox.stop()  # from here on, what comes back was cut off
                pool.shutdown(cancel_futures=True)
                for future in ready:
                    self._take(running[future], future.result())

    def _in_turn(self) -> list[int]:
        """Those that are left; who left the same stubs untouched stand together, since the same process serves them."""
        left = [index for index in range(len(self.found)) if index not in self.done]
        stubs: dict[int, list[str]] = {}
        for index in left:
            with suppress(Exception):  # what is wrong with it is said when its turn comes
                stubs[index] = _untouched(self.found[index])
        return sorted(left, key=lambda index: (self.found[index].assignment, stubs.get(index, []), index))

    def _gather(self, running: dict[Future, int], progress) -> None:
        while running:
            # A wait without end could not be interrupted everywhere.
            for future in wait(running, timeout=LOOK, return_when=FIRST_COMPLETED).done:
                graded = future.result()
                self._take(running.pop(future), graded)
                if progress is not None:
                    progress(len(self.done), len(self.found), graded.submission.student)

    def _take(self, index: int, graded: Graded) -> None:
        self.done[index] = graded
        if self.records is not None and not graded.submission.problem:
            self.records.keep(graded, self.seed)

    @property
    def graded(self) -> list[Graded]:
        """One for each submission, in their order; those that an interrupt left out say so."""
        for index, submission in enumerate(self.found):
            if index not in self.done:
                submission.problem = INTERRUPTED
        return [self.done.get(index) or Graded(one) for index, one in enumerate(self.found)]


def _graded(submission: Submission, sandbox: Sandbox, seed: int) -> Graded:
    """One notebook, run and marked. Whatever goes wrong is said of this notebook alone."""
    try:
        opened = _Opened(submission)
        back = sandbox.run(submission, opened.attempted, [VISIBLE, seed], opened.blank)
        graded = _mark(opened, back, seed)
        graded.marks = carry_forward(
            graded.marks, back.calls, lambda name: _mark_again(opened, name, sandbox, back, seed)
        )
        return graded
    except Exception as error:
        submission.problem = f"it could not be graded ({type(error).__name__}: {str(error)[:300]}): tell your teacher"
        print(f"{submission.student!r}: {submission.problem!r}", file=sys.stderr)
        return Graded(submission)


def _untouched(submission: Submission) -> list[str]:
    return sorted(untouched((cell.source for cell in submission.cells), assignments()[submission.assignment]))


class _Opened:
    """A readable submission and the exercises of its assignment.

    `blank` names those that nobody has touched: they earn nothing, so the library may stand in for them. `attempted`
    are the others.
    """

    def __init__(self, submission: Submission):
        self.submission = submission
        self.exercises = {name: EXERCISES[name] for name in assignments()[submission.assignment]}
        self.blank = _untouched(submission)
        self.attempted = {name: exercise for name, exercise in self.exercises.items() if name not in self.blank}


def _mark_again(one: _Opened, name: str, sandbox: Sandbox, back: Returned, seed: int) -> Mark:
    """This exercise once more, with the library's functions for those that stand before it, and for no other.

    What is missing then depends on the exercise alone, so that one process that has loaded it serves the whole class.
    """
    lent = sorted(earlier(name))
    missing = {other: exercise for other, exercise in one.exercises.items() if other not in lent}
    cells = [cell for cell in one.submission.cells if str(cell.number) not in back.deadly]
    second = sandbox.run(replace(one.submission, cells=cells), missing, [VISIBLE, seed], lent, [name], back.end)
    return mark_exercise(one.exercises[name], second.results[name], seed)


def _mark(one: _Opened, back: Returned, seed: int) -> Graded:
    marks = [
        mark_exercise(exercise, back.results[name], seed) if name in one.attempted else not_started_mark(exercise)
        for name, exercise in one.exercises.items()
    ]
    return Graded(one.submission, marks, back.cells)
