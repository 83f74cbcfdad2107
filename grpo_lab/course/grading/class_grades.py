"""The grades of a class: what each submission earned and why, and the file in which they are stored."""

import json
import re
import textwrap
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from grpo_lab.base.checks import InputError
from grpo_lab.course.checking.outcome import Fault, Status
from grpo_lab.course.checking.verdict import Part, PartKind, ValueLine, Verdict
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.exercises import ASSIGNMENTS_BY_STEM, Assignment
from grpo_lab.course.grading.messages import Cell
from grpo_lab.course.grading.submission import Submission

GRADES_FILE = "grades.json"  # the file that a later grading and `totals` read


class AnswerState(StrEnum):
    """How much of its points an answer earned. The values are classes in the style sheet of the pages."""

    RIGHT = "right"
    PARTLY = "partly"
    WRONG = "wrong"  # no points
    NOT_BEGUN = "none"


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
    failed_cells: dict[int, str] = field(default_factory=dict)
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

    def state(self, exercise: Exercise) -> AnswerState:
        """Return the state of the answer to an exercise."""
        verdict = self.verdicts.get(exercise.name)
        if verdict is None or verdict.status == Status.NOT_STARTED:
            return AnswerState.NOT_BEGUN
        points = self.points[exercise.name]
        if points == exercise.points:
            return AnswerState.RIGHT
        return AnswerState.PARTLY if points else AnswerState.WRONG


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
        assignment_stem: The file stem of the assignment, such as "02_baselines_and_advantages".
        seed: The seed of the last grading.
        isolation: The isolation of the submissions in the last grading, as `strongest_isolation` names it.
        submissions: The graded submissions, one for each student.
        class_fingerprint: The fingerprint of the class's formulas (`ClassKey.fingerprint`); "" without variants.
        variants: The exercises with a formula of the class. The file leaves them out.
    """

    assignment_stem: str
    seed: int
    isolation: str
    submissions: list[GradedSubmission]
    class_fingerprint: str = ""
    variants: dict[str, Exercise] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> "ClassGrades":
        """Read the file that `as_json` wrote in an earlier grading.

        Raises:
            InputError: If the file does not have that form.
        """
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            return cls(**values | {"submissions": [_graded_submission(entry) for entry in values["submissions"]]})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
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

        regraded = {student_id(graded) for graded in self.submissions}
        earlier_only = [graded for graded in earlier.submissions if student_id(graded) not in regraded]
        submissions = sorted(
            [*earlier_only, *self.submissions], key=lambda graded: graded.submission.student.casefold()
        )
        return replace(self, submissions=submissions)

    @property
    def assignment(self) -> Assignment:
        return ASSIGNMENTS_BY_STEM[self.assignment_stem]

    @property
    def exercises(self) -> dict[str, Exercise]:
        """The exercises of the assignment by name, with the formulas of the class."""
        return self.assignment.exercises | self.variants

    @property
    def max_points(self) -> int:
        return sum(exercise.points for exercise in self.exercises.values())

    @property
    def handed_in(self) -> list[GradedSubmission]:
        """The submissions that could be graded."""
        return [graded for graded in self.submissions if not graded.submission.problem]


def _graded_submission(entry: dict) -> GradedSubmission:
    cells = [Cell(**cell) for cell in entry["submission"]["cells"]]
    submission = Submission(**entry["submission"] | {"cells": cells})
    verdicts = {name: _verdict(verdict) for name, verdict in entry["verdicts"].items()}
    failed_cells = {int(number): reason for number, reason in entry["failed_cells"].items()}  # JSON has texts as keys
    return GradedSubmission(**entry | {"submission": submission, "verdicts": verdicts, "failed_cells": failed_cells})


def _verdict(entry: dict) -> Verdict:
    parts = {name: tuple(map(_part, entry[name])) for name in ("parts", "folded_parts")}
    words = {"status": Status(entry["status"]), "fault": Fault(entry["fault"])}
    return Verdict(**entry | parts | words | {"misconceptions": tuple(entry["misconceptions"])})


def _part(entry: dict) -> Part:
    rows = tuple(ValueLine(**row) for row in entry["rows"])
    return Part(**entry | {"kind": PartKind(entry["kind"]), "rows": rows})
