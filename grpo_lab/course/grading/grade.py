"""Mark a folder of submissions: run each in a sandbox, and compare what came back.

One notebook costs only its author: whatever happens with it, in reading, running or comparing, becomes an entry of its
own. A function is judged on the inputs that the student could see (seed 0) and on fresh ones (the seed of this
grading), so that nothing written down for the first passes.
"""

import json
import re
import textwrap
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from grpo_lab.base.checks import InputError
from grpo_lab.course.checking import Verdict, judge, worth
from grpo_lab.course.checking.verdict import Part, Row
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.grading.collect import find_submissions
from grpo_lab.course.grading.downloads import Submission
from grpo_lab.course.grading.notebook import Cell
from grpo_lab.course.grading.runner import MISSING
from grpo_lab.course.grading.sandbox import Answers, Failures, Sandbox
from grpo_lab.course.release import number_of, of_notebook
from grpo_lab.course.variant import ClassKey
from grpo_lab.sandbox.isolation import private_folders, strongest_isolation

VISIBLE = 0
GRADES = "grades.json"  # what a later grading and `totals` go on from
HARD_CODED = (
    "Right on the inputs that you see, wrong on others of the same kind. Does it hold only for certain shapes or "
    "numbers? Here is what else was found:"
)


@dataclass
class GradedSubmission:
    """A submission, marked: points and verdict by exercise; and why cells failed, by their numbers.

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
        """Remarks on the submission itself: why it cannot be graded, which files were left out."""
        submission = self.submission
        if not submission.problem:
            return submission.notes
        return [f"{submission.file}: {submission.problem}".removeprefix(": "), *submission.notes]

    @property
    def remarks(self) -> list[str]:
        """Notes on the submission, and why cells failed."""
        reasons = {
            number: textwrap.shorten(cause(reason), 160, placeholder=" …") for number, reason in self.cells.items()
        }
        return [*self.notes, *(f"cell {number} failed: {reason}" for number, reason in reasons.items())]

    def state(self, exercise: Exercise) -> str:
        """The state of an exercise: "right", "partly", "wrong", or "none" for what was not begun."""
        verdict = self.verdicts.get(exercise.name)
        if verdict is None or verdict.status == "not started":
            return "none"
        points = self.points[exercise.name]
        return "right" if points == exercise.points else "partly" if points else "wrong"


# What a cell tried, and the errors with which the sandbox answers.
_CAUSES = {
    "network": r"gaierror|URLError|HTTPError|ConnectionError|ConnectionRefused|Network is unreachable|Max retries",
    "a process of its own": r"BlockingIOError|threads or processes|fork|temporarily unavailable|can't start new",
    "the end of the program": r"^(SystemExit|KeyboardInterrupt)|ended the whole process",
    "no end": r"time limit",
    "memory": r"MemoryError|Cannot allocate memory|can't allocate memory",
    "a file": r"PermissionError|Read-only file system|FileNotFoundError|File too large",
}


def cause(reason: str) -> str:
    """Why a cell failed, in the words that say what it tried: the network, a process, an exit; then the error."""
    kind = next((kind for kind, pattern in _CAUSES.items() if re.search(pattern, reason)), "")
    return f"{kind} ({reason})" if kind else reason


@dataclass
class ClassGrades:
    """A class, marked: the assignment (its file stem), seed and isolation of the last run, and every student.

    variants: the exercises with a formula of the class, which no file keeps; of_class: their mark, which it does.
    """

    assignment: str
    seed: int
    wall: str  # the isolation, as `strongest_isolation` names it; saved files have this name
    students: list[GradedSubmission]
    of_class: str = ""
    variants: dict[str, Exercise] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> "ClassGrades":
        """Read the file of an earlier run, as `as_json` makes it.

        Raises:
            InputError: for a file that this is not.
        """
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            return cls(**content | {"students": [graded_from_json(entry) for entry in content["students"]]})
        except (ValueError, KeyError, TypeError) as error:
            problem = f"is {str(file)!r}, which no grading wrote ({type(error).__name__})"
            raise InputError("output", file, "name another folder, or move it away", found=problem) from error

    def as_json(self) -> str:
        return json.dumps(asdict(replace(self, variants={})))

    def merged(self, earlier: "ClassGrades") -> "ClassGrades":
        """Add those who were graded earlier and not now; who is graded again has the new marks.

        Raises:
            InputError: if the others were judged by other formulas.
        """
        if earlier.of_class != self.of_class:
            allowed = "give the secret of then, or another folder with --output"
            raise InputError("variant", None, allowed, found="is another one than that of the earlier grading")

        def identity(graded: GradedSubmission) -> tuple[str, str]:
            return graded.submission.student, graded.submission.number

        regraded = {identity(graded) for graded in self.students}
        earlier_only = [graded for graded in earlier.students if identity(graded) not in regraded]
        students = sorted([*earlier_only, *self.students], key=lambda graded: graded.submission.student.casefold())
        return replace(self, students=students)

    @property
    def exercises(self) -> dict[str, Exercise]:
        return of_notebook(number_of(self.assignment)) | self.variants

    @property
    def out_of(self) -> int:
        return sum(exercise.points for exercise in self.exercises.values())

    @property
    def handed_in(self) -> list[GradedSubmission]:
        return [graded for graded in self.students if not graded.submission.problem]


def grade(
    folder: Path,
    seed: int,
    *,
    assignment: str | None = None,
    jobs: int = 1,
    seconds: float = 30.0,
    trust: bool = False,
    hidden: Iterable[Path] = (),
    key: ClassKey | None = None,
    progress: Callable[[int, int, GradedSubmission, float], None] = lambda marked, total, graded, seconds: None,
) -> ClassGrades:
    """Mark everything in the folder. An interrupt ends all that runs; nothing is written here.

    Args:
        folder: one folder, notebook or archive a student; or a zip archive of a class.
        seed: of the fresh inputs, not 0.
        assignment: such as "02"; None means the one that most students handed in.
        jobs: notebooks that run at the same time.
        seconds: for a cell and for an exercise.
        trust: run without a sandbox where there is none.
        hidden: paths that no submission may read, beside the folder, the package and your home.
        key: of a class that has variants.
        progress: called with (marked, of how many, the last one, its seconds).

    Raises:
        ValueError: for a folder in which nobody has handed in anything, and for an unknown assignment; and where there
            is neither a sandbox nor trust; and where most notebooks have other variants than the key.
    """
    stem, submissions = find_submissions(folder, assignment)
    number, unseen = number_of(stem), [folder, *hidden, *private_folders()]
    variants, of_class = (key.exercises(number), key.mark(number)) if key else ({}, "")
    _refuse_other_variants(submissions, of_class)
    exercises = of_notebook(number) | variants
    with Sandbox(of_notebook(number), strongest_isolation(trust), seconds, unseen) as sandbox:
        students = _grade_submissions(submissions, sandbox, jobs, seed, exercises, progress)
    return ClassGrades(stem, seed, sandbox.isolation, students, of_class, variants)


def _grade_submissions(
    submissions: list[Submission],
    sandbox: Sandbox,
    jobs: int,
    seed: int,
    exercises: dict[str, Exercise],
    progress: Callable[[int, int, GradedSubmission, float], None],
) -> list[GradedSubmission]:
    """Grade `jobs` submissions at the same time; an exception or an interrupt stops all that run."""
    graded: dict[int, GradedSubmission] = {}
    seconds_of: dict[int, float] = {}

    def run(index: int) -> tuple[Answers, Failures]:
        started = time.monotonic()
        try:
            return _run(submissions[index], sandbox, seed)
        finally:
            seconds_of[index] = time.monotonic() - started

    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(run, index): index for index in range(len(submissions))}
        try:
            for future in as_completed(futures):
                index = futures[future]
                graded[index] = grade_submission(submissions[index], future, exercises, seed)
                progress(len(graded), len(submissions), graded[index], seconds_of.get(index, 0.0))
        except BaseException:
            sandbox.stop()
            pool.shutdown(cancel_futures=True)
            raise
    return [graded[index] for index in range(len(submissions))]


def _refuse_other_variants(submissions: list[Submission], of_class: str) -> None:
    """Note which notebooks were released with other formulas than those that they are judged by.

    Raises:
        InputError: if most were.
    """
    readable = [submission for submission in submissions if not submission.problem]
    mismatched = [submission for submission in readable if submission.of_class != of_class]
    if len(mismatched) > max(1, len(readable) / 2):
        have_variants = bool(mismatched[0].of_class)
        problem = f"is {'another secret' if of_class else 'missing'}" if have_variants else "is given"
        allowed = "give the secret that most were released with" if have_variants else "most notebooks have no variants"
        raise InputError("variant", None, allowed, found=problem)
    for submission in mismatched:
        submission.notes.append("its notebook has other formulas than those of the class, by which it was judged")


def _run(submission: Submission, sandbox: Sandbox, seed: int) -> tuple[Answers, Failures]:
    return ({}, {}) if submission.problem else sandbox.run(submission.cells, [VISIBLE, seed])


def grade_submission(
    submission: Submission, future: Future, exercises: dict[str, Exercise], seed: int
) -> GradedSubmission:
    """Mark one notebook. Whatever goes wrong is said of this notebook alone."""
    no_points: dict[str, int | float] = dict.fromkeys(exercises, 0)
    try:
        answers, failures = future.result()
        if submission.problem:
            return GradedSubmission(submission, no_points)
        answers = {name: _missing(submission, name, answer, failures) for name, answer in answers.items()}
        marks = {name: mark(exercise, answers[name], seed) for name, exercise in exercises.items()}
    except Exception as error:
        submission.problem = f"it could not be graded ({type(error).__name__}: {str(error)[:300]}): tell your teacher"
        return GradedSubmission(submission, no_points)
    points = {name: points for name, (points, _) in marks.items()}
    return GradedSubmission(submission, points, {name: verdict for name, (_, verdict) in marks.items()}, failures, seed)


def _missing(
    submission: Submission, name: str, answer: dict[int, list] | str, failures: Failures
) -> dict[int, list] | str:
    """The answer; in place of one that is missing, why its cell failed, or the name that it defines instead."""
    if answer == MISSING and name in submission.as_text:
        return f"The cell of `{name}` is text (Markdown), and not code: nothing in it ran. Make it a code cell again."
    for cell in submission.cells if answer == MISSING else ():
        if cell.exercise == name and str(cell.number) in failures:
            return f"Its cell failed: {failures[str(cell.number)]}"
        if cell.exercise == name and cell.defines:
            return f"You defined `{cell.defines[-1]}`; expected a function named `{name}`."
    return answer


def graded_from_json(entry: dict) -> GradedSubmission:
    """Make the submission of an entry again, as `asdict` wrote it."""
    submission_entry = entry["submission"]
    submission = Submission(**submission_entry | {"cells": [Cell(**cell) for cell in submission_entry["cells"]]})
    verdicts = {name: _verdict(verdict) for name, verdict in entry["verdicts"].items()}
    return GradedSubmission(**entry | {"submission": submission, "verdicts": verdicts})


def _verdict(entry: dict) -> Verdict:
    parts = {name: tuple(map(_part, entry[name])) for name in ("parts", "folded")}
    return Verdict(**entry | parts | {"misconceptions": tuple(entry["misconceptions"])})


def _part(entry: dict) -> Part:
    return Part(**entry | {"rows": tuple(Row(**row) for row in entry["rows"])})


def mark(exercise: Exercise, answer: dict[int, list] | str, seed: int) -> tuple[int | float, Verdict]:
    """Turn outcomes into points and a verdict. The student's code is not needed for it, and not there.

    answer: as in `Answers`.
    """
    try:
        if isinstance(answer, str):
            return 0, _sentence_verdict(exercise, "not started" if answer == MISSING else "form", answer)
        visible, fresh = (judge(exercise, answer[case_seed], case_seed) for case_seed in (VISIBLE, seed))
        points = worth(visible, fresh)
    except Exception as error:  # the outcomes come from a stranger's process: none may end the grading of the others
        message = f"What it returned could not be judged: {type(error).__name__}: {error}"
        return 0, _sentence_verdict(exercise, "form", message[:500])
    if visible.right and not fresh.right:
        # Nothing of the fresh inputs is shown.
        verdict = _sentence_verdict(exercise, fresh.status, f"{HARD_CODED}\n{fresh.message}")
        return points, replace(verdict, fault=fresh.fault, misconceptions=fresh.misconceptions)
    return points, visible


def _sentence_verdict(exercise: Exercise, status: str, text: str) -> Verdict:
    parts = tuple(Part("say", line) for line in text.splitlines() if line.strip())
    return Verdict(exercise.name, status, parts, fault="stopped" if status == "form" else "")
