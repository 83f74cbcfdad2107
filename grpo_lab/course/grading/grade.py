"""Grade a folder of submissions: run each one in a sandbox, and compare the outcomes with the references'.

A problem with one notebook never affects the others. Whether it comes up in reading, running or comparing, it is
recorded for this notebook alone. Each function is judged on the inputs that students see (seed 0) and on fresh ones
(the seed of the grading), so that an answer written down for the visible inputs earns nothing.
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
from grpo_lab.course.checking import Verdict, earned_points, judge
from grpo_lab.course.checking.verdict_parts import Part, ValueLine
from grpo_lab.course.earlier_files import field_values
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.grading.collect import find_submissions
from grpo_lab.course.grading.downloads import Submission
from grpo_lab.course.grading.notebook import Cell
from grpo_lab.course.grading.runner import MISSING
from grpo_lab.course.grading.sandbox import Answers, Failures, Sandbox
from grpo_lab.course.release import exercises_of_notebook, number_of
from grpo_lab.course.variant import ClassKey
from grpo_lab.course.verdict_words import Fault, PartKind, Status
from grpo_lab.sandbox.isolation import private_folders, strongest_isolation

VISIBLE_SEED = 0  # the seed of the inputs that students see
GRADES_FILE = "grades.json"  # the file that a later grading and `totals` read
HARD_CODED = (
    "Right on the inputs that you see, wrong on others of the same kind. Does it hold only for certain shapes or "
    "numbers? Here is what else was found:"
)


@dataclass
class GradedSubmission:
    """A submission with its marks.

    Attributes:
        submission: The notebook that was handed in.
        points: The points by exercise.
        verdicts: The verdicts by exercise; empty if the submission could not be graded.
        failed_cells: The reason why a cell failed, by the cell's number.
        seed: The seed from which the fresh inputs were drawn.
    """

    submission: Submission
    points: dict[str, int | float]
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    failed_cells: Failures = field(default_factory=dict)
    seed: int = 0

    @property
    def total(self) -> int | float:
        return round(sum(self.points.values()), 2)

    @property
    def notes(self) -> list[str]:
        """Remarks on the submission itself, such as why it cannot be graded and which files were left out."""
        submission = self.submission
        if not submission.problem:
            return submission.notes
        return [f"{submission.file}: {submission.problem}".removeprefix(": "), *submission.notes]

    @property
    def remarks(self) -> list[str]:
        """The notes, and a sentence on each cell that failed."""
        reasons = {number: with_cause(reason) for number, reason in self.failed_cells.items()}
        shortened = {number: textwrap.shorten(text, 160, placeholder=" …") for number, text in reasons.items()}
        return [*self.notes, *(f"cell {number} failed: {reason}" for number, reason in shortened.items())]

    def state(self, exercise: Exercise) -> str:
        """Return the state of an exercise: "right", "partly", "wrong", or "none" if it was not begun."""
        verdict = self.verdicts.get(exercise.name)
        if verdict is None or verdict.status == Status.NOT_STARTED:
            return "none"
        points = self.points[exercise.name]
        if points == exercise.points:
            return "right"
        return "partly" if points else "wrong"


# Patterns of the errors that a cell gets from the sandbox, by the words for what the cell tried.
_CAUSES = {
    "network": r"gaierror|URLError|HTTPError|ConnectionError|ConnectionRefused|Network is unreachable|Max retries",
    "a process of its own": r"BlockingIOError|threads or processes|fork|temporarily unavailable|can't start new",
    "the end of the program": r"^(SystemExit|KeyboardInterrupt)|ended the whole process",
    "no end": r"time limit",
    "memory": r"MemoryError|Cannot allocate memory|can't allocate memory",
    "a file": r"PermissionError|Read-only file system|FileNotFoundError|File too large",
}


def with_cause(reason: str) -> str:
    """Return the reason why a cell failed, preceded by what it tried, such as the network, if that is known."""
    cause = next((cause for cause, pattern in _CAUSES.items() if re.search(pattern, reason)), "")
    return f"{cause} ({reason})" if cause else reason


@dataclass
class ClassGrades:
    """The graded submissions of a class.

    Attributes:
        assignment: The file stem of the assignment, such as "02_baselines_and_advantages".
        seed: The seed of the last grading.
        isolation: The isolation of the submissions in the last grading, as `strongest_isolation` names it.
        students: The graded submissions, one for each student.
        class_fingerprint: The fingerprint of the class's formulas (`ClassKey.fingerprint`); "" without variants.
        variants: The exercises with a formula of the class. The file leaves them out.
    """

    assignment: str
    seed: int
    isolation: str
    students: list[GradedSubmission]
    class_fingerprint: str = ""
    variants: dict[str, Exercise] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> "ClassGrades":
        """Read the file that `as_json` wrote in an earlier grading, by this version or an earlier one.

        Raises:
            InputError: If the file does not have that form.
        """
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            students = [_graded_submission(entry) for entry in content["students"]]
            return cls(**field_values(cls, content) | {"students": students})
        except (ValueError, KeyError, TypeError) as error:
            problem = f"is {str(file)!r}, which no grading wrote ({type(error).__name__})"
            raise InputError("output", file, "name another folder, or move it away", problem=problem) from error

    def as_json(self) -> str:
        """Return the text of the grades file: all fields but the variants, by their names."""
        return json.dumps(asdict(replace(self, variants={})))

    def merged(self, earlier: "ClassGrades") -> "ClassGrades":
        """Return these grades together with those of students who were graded only in an earlier grading.

        Raises:
            InputError: If the earlier grading was by other formulas.
        """
        if earlier.class_fingerprint != self.class_fingerprint:
            expected = "give the secret of the earlier grading, or another folder with --output"
            raise InputError("variant", None, expected, problem="differs from that of the earlier grading")

        def student_id(graded: GradedSubmission) -> tuple[str, str]:
            return graded.submission.student, graded.submission.platform_id

        regraded = {student_id(graded) for graded in self.students}
        earlier_only = [graded for graded in earlier.students if student_id(graded) not in regraded]
        students = sorted([*earlier_only, *self.students], key=lambda graded: graded.submission.student.casefold())
        return replace(self, students=students)

    @property
    def exercises(self) -> dict[str, Exercise]:
        return exercises_of_notebook(number_of(self.assignment)) | self.variants

    @property
    def max_points(self) -> int:
        return sum(exercise.points for exercise in self.exercises.values())

    @property
    def handed_in(self) -> list[GradedSubmission]:
        """The submissions that could be graded."""
        return [graded for graded in self.students if not graded.submission.problem]


def grade(
    folder: Path,
    seed: int,
    *,
    assignment: str | None = None,
    jobs: int = 1,
    time_limit: float = 30.0,
    trust: bool = False,
    hidden_paths: Iterable[Path] = (),
    key: ClassKey | None = None,
    progress: Callable[[int, int, GradedSubmission, float], None] = lambda num_graded, total, graded, seconds: None,
) -> ClassGrades:
    """Grade all submissions in a folder. This writes no file; an interrupt stops all that runs.

    Args:
        folder: A folder with one folder, notebook or archive for each student, or a zip archive of a class.
        seed: The seed from which the fresh inputs are drawn, not 0.
        assignment: The number of the assignment, such as "02"; None means the one that most students handed in.
        jobs: Number of notebooks that run at the same time.
        time_limit: The seconds that each cell and each exercise may take.
        trust: Whether to run submissions without a sandbox if none is available.
        hidden_paths: Paths that no submission may read, besides the folder, the package and the home folder.
        key: The key of a class that has variants.
        progress: A function that is called after each submission, with the number of graded submissions, the number of
            all, the graded submission, and the seconds that it took.

    Raises:
        ValueError: If the folder has no submissions, the assignment is unknown, there is no sandbox and `trust` is
            False, or most notebooks have other variants than the key.
    """
    assignment_stem, submissions = find_submissions(folder, assignment)
    number = number_of(assignment_stem)
    variants, fingerprint = (key.exercises(number), key.fingerprint(number)) if key else ({}, "")
    _note_other_variants(submissions, fingerprint)
    exercises = exercises_of_notebook(number) | variants
    all_hidden_paths = [folder, *hidden_paths, *private_folders()]
    with Sandbox(exercises_of_notebook(number), strongest_isolation(trust), time_limit, all_hidden_paths) as sandbox:
        students = _grade_submissions(submissions, sandbox, jobs, seed, exercises, progress)
    return ClassGrades(assignment_stem, seed, sandbox.isolation, students, fingerprint, variants)


def _grade_submissions(
    submissions: list[Submission],
    sandbox: Sandbox,
    jobs: int,
    seed: int,
    exercises: dict[str, Exercise],
    progress: Callable[[int, int, GradedSubmission, float], None],
) -> list[GradedSubmission]:
    """Grade `jobs` submissions at the same time. An exception or an interrupt stops all that run."""
    graded: dict[int, GradedSubmission] = {}
    seconds_by_index: dict[int, float] = {}

    def run(index: int) -> tuple[Answers, Failures]:
        started = time.monotonic()
        try:
            return _run_submission(submissions[index], sandbox, seed)
        finally:
            seconds_by_index[index] = time.monotonic() - started

    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(run, index): index for index in range(len(submissions))}
        try:
            for future in as_completed(futures):
                index = futures[future]
                graded[index] = grade_submission(submissions[index], future, exercises, seed)
                progress(len(graded), len(submissions), graded[index], seconds_by_index.get(index, 0.0))
        except BaseException:
            sandbox.stop()
            pool.shutdown(cancel_futures=True)
            raise
    return [graded[index] for index in range(len(submissions))]


def _note_other_variants(submissions: list[Submission], fingerprint: str) -> None:
    """Add a note to each notebook that was released with other formulas than those of the class.

    fingerprint: The fingerprint of the class's formulas; "" for a class without variants.

    Raises:
        InputError: If this is true of most notebooks.
    """
    readable = [submission for submission in submissions if not submission.problem]
    mismatched = [submission for submission in readable if submission.class_fingerprint != fingerprint]
    if len(mismatched) > max(1, len(readable) / 2):
        if not mismatched[0].class_fingerprint:
            raise InputError("variant", None, "most notebooks have no variants", problem="is given")
        problem = "is another secret" if fingerprint else "is missing"
        raise InputError("variant", None, "give the secret that most were released with", problem=problem)
    for submission in mismatched:
        submission.notes.append("its notebook has other formulas than those of the class, by which it was judged")


def _run_submission(submission: Submission, sandbox: Sandbox, seed: int) -> tuple[Answers, Failures]:
    return ({}, {}) if submission.problem else sandbox.run(submission.cells, [VISIBLE_SEED, seed])


def grade_submission(
    submission: Submission, future: Future, exercises: dict[str, Exercise], seed: int
) -> GradedSubmission:
    """Grade one notebook. An error in doing so is recorded for this notebook alone.

    Args:
        future: The run of the notebook in the sandbox.
        exercises: The exercises of the assignment, with the variants of the class.
        seed: The seed from which the fresh inputs are drawn.
    """
    no_points: dict[str, int | float] = dict.fromkeys(exercises, 0)
    try:
        answers, failures = future.result()
        if submission.problem:
            return GradedSubmission(submission, no_points)
        answers = {name: explain_missing(submission, name, answer, failures) for name, answer in answers.items()}
        marks = {name: grade_answer(exercise, answers[name], seed) for name, exercise in exercises.items()}
    except Exception as error:
        problem = f"it could not be graded ({type(error).__name__}: {str(error)[:300]}): tell your teacher"
        return GradedSubmission(replace(submission, problem=problem), no_points)
    points = {name: points for name, (points, _) in marks.items()}
    return GradedSubmission(submission, points, {name: verdict for name, (_, verdict) in marks.items()}, failures, seed)


def explain_missing(
    submission: Submission, name: str, answer: dict[int, list] | str, failures: Failures
) -> dict[int, list] | str:
    """Return the answer; for a missing function a sentence on the reason, if it is known.

    Known reasons are: the cell is a text cell, it failed, or it defines a function of another name.
    """
    if answer != MISSING:
        return answer
    if name in submission.exercises_as_text:
        return f"The cell of `{name}` is text (Markdown), and not code: nothing in it ran. Make it a code cell again."
    for cell in submission.cells:
        if cell.exercise == name and str(cell.number) in failures:
            return f"Its cell failed: {failures[str(cell.number)]}"
        if cell.exercise == name and cell.defines:
            return f"You defined `{cell.defines[-1]}`; expected a function named `{name}`."
    return answer


def _graded_submission(entry: dict) -> GradedSubmission:
    submission_values = field_values(Submission, entry["submission"])
    submission = Submission(**submission_values | {"cells": [Cell(**cell) for cell in submission_values["cells"]]})
    verdicts = {name: _verdict(verdict) for name, verdict in entry["verdicts"].items()}
    return GradedSubmission(**field_values(GradedSubmission, entry) | {"submission": submission, "verdicts": verdicts})


def _verdict(entry: dict) -> Verdict:
    values = field_values(Verdict, entry)
    parts = {name: tuple(map(_part, values[name])) for name in ("parts", "folded_parts")}
    words = {"status": Status(values["status"]), "fault": Fault(values.get("fault", ""))}
    return Verdict(**values | parts | words | {"misconceptions": tuple(values["misconceptions"])})


def _part(entry: dict) -> Part:
    if entry["kind"] == PartKind.EQUATION and "tag" not in entry:  # an earlier version stored the tag as the title
        entry = entry | {"tag": entry["title"], "title": ""}
    rows = tuple(ValueLine(**row) for row in entry["rows"])
    return Part(**entry | {"kind": PartKind(entry["kind"]), "rows": rows})


def grade_answer(exercise: Exercise, answer: dict[int, list] | str, seed: int) -> tuple[int | float, Verdict]:
    """Return the points and the verdict of an answer, from its outcomes alone; the student's code is not run here.

    Args:
        answer: The outcomes by seed, or a sentence that explains why there are none; see `Answers`.
        seed: The seed from which the fresh inputs were drawn.
    """
    try:
        if isinstance(answer, str):
            return 0, _sentence_verdict(exercise, Status.NOT_STARTED if answer == MISSING else Status.FORM, answer)
        visible = judge(exercise, answer[VISIBLE_SEED], VISIBLE_SEED)
        fresh = judge(exercise, answer[seed], seed)
        points = earned_points(visible, fresh)
    except Exception as error:  # the outcomes come from the student's process, and may not end the grading of others
        message = f"What it returned could not be judged: {type(error).__name__}: {error}"
        return 0, _sentence_verdict(exercise, Status.FORM, message[:500])
    if visible.right and not fresh.right:
        # The verdict has sentences only, so that it shows no fresh input.
        verdict = _sentence_verdict(exercise, fresh.status, f"{HARD_CODED}\n{fresh.message}")
        return points, replace(verdict, fault=fresh.fault, misconceptions=fresh.misconceptions)
    return points, visible


def _sentence_verdict(exercise: Exercise, status: Status, text: str) -> Verdict:
    parts = tuple(Part(PartKind.SENTENCES, line) for line in text.splitlines() if line.strip())
    return Verdict(exercise.name, status, parts, fault=Fault.STOPPED if status == Status.FORM else Fault.NONE)
