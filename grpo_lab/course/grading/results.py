"""What each student has in the end: functions, written answers, overrides, late days; one sum, everywhere."""

from dataclasses import dataclass, field
from pathlib import Path

from grpo_lab.course.grading.grade import Grading
from grpo_lab.course.grading.marks import Graded
from grpo_lab.course.grading.people import Deadline, Person, who
from grpo_lab.course.grading.tables import number, read_table
from grpo_lab.course.release.written import WRITTEN, Question

NOTHING = "handed in nothing"
UNTOUCHED = "*Your answer here."  # what the assignment's cell says before anybody writes in it


@dataclass(frozen=True)
class Override:
    """What the teacher says an exercise or a question is worth, and why."""

    points: int | float
    reason: str


@dataclass
class Extras:
    """What a teacher adds to a grading: each part may be missing."""

    roster: list[Person] = field(default_factory=list)
    deadline: Deadline | None = None
    times: dict[str, float] = field(default_factory=dict)
    written: dict[tuple[str, str], Override] = field(default_factory=dict)
    overrides: dict[tuple[str, str], Override] = field(default_factory=dict)


@dataclass
class Result:
    """One student. `points` by exercise and by question; a written answer that nobody has marked yet is None.

    student: the name on paper, which may be a pseudonym. key: the name as the grading has it.
    """

    student: str
    person: Person | None
    graded: list[Graded]
    points: dict[str, int | float | None]
    late: int = 0
    worth: float = 1.0
    remarks: list[str] = field(default_factory=list)
    overridden: dict[str, Override] = field(default_factory=dict)
    key: str = ""

    def __post_init__(self):
        self.key = self.key or self.student

    @property
    def earned(self) -> int | float:
        """Before what lateness costs."""
        return sum(points for points in self.points.values() if points is not None)

    @property
    def total(self) -> int | float:
        return round(self.earned * self.worth, 2)

    @property
    def unmarked(self) -> list[str]:
        return [name for name, points in self.points.items() if points is None]


def is_answer(text: str) -> bool:
    """Whether somebody wrote something in the cell of a question."""
    return bool(text.strip()) and not text.strip().startswith(UNTOUCHED)


def questions(grading: Grading) -> list[Question]:
    """The written questions of every assignment that anybody handed in."""
    numbers = sorted({one.submission.assignment[:2] for one in grading.graded if one.submission.assignment})
    return [question for number_ in numbers for question in WRITTEN[number_]]


def out_of(grading: Grading) -> int:
    """All that can be earned: functions and written answers, as the head of each assignment says."""
    return grading.out_of + sum(question.points for question in questions(grading))


def results(grading: Grading, extras: Extras | None = None) -> list[Result]:
    """A result for everybody who handed in, and for everybody on the roster who did not.

    Raises:
        ValueError: for points or overrides of a student, an exercise or a question that there is not.
    """
    extras = extras or Extras()
    found = [_result(student, graded, grading, extras) for student, graded in grading.students.items()]
    there = {one.person.id for one in found if one.person}
    for person in extras.roster:
        if person.id not in there:
            nothing: dict[str, int | float | None] = dict.fromkeys(_names(grading), 0)
            found.append(Result(person.name, person, [], nothing, remarks=[NOTHING]))
    _check_used(found, grading, extras)
    return sorted(found, key=lambda one: one.student.casefold())


def _names(grading: Grading) -> list[str]:
    return [e.name for e in grading.exercises] + [question.name for question in questions(grading)]


def _result(student: str, graded: list[Graded], grading: Grading, extras: Extras) -> Result:
    points: dict[str, int | float | None] = dict.fromkeys((e.name for e in grading.exercises), 0)
    points |= {mark.exercise.name: mark.points for one in graded for mark in one.marks}
    person = who(graded[0].submission, extras.roster) if extras.roster else None
    one = Result(student, person, graded, points, remarks=_remarks(graded))
    if extras.roster and person is None:
        one.remarks.append("not on the roster, or more than one there fits")
    for question in questions(grading):
        given = extras.written.get((student, question.name))
        open_ = any(is_answer(g.submission.written.get(question.name, "")) for g in graded)
        points[question.name] = given.points if given else None if open_ else 0
    for (name, what), override in extras.overrides.items():
        if name == student and what in points:
            one.overridden[what] = override
            points[what] = override.points
    if extras.deadline:
        times = [extras.times.get(student, g.submission.modified) for g in graded]
        one.late = max(extras.deadline.late(time) for time in times)
        one.worth = extras.deadline.worth(one.late)
    return one


def _remarks(graded: list[Graded]) -> list[str]:
    found = []
    for one in graded:
        name = one.submission.name
        found += [f"{name}: {one.submission.problem}"] if one.submission.problem else []
        found += [f"{name}: marked as late by the platform"] if one.submission.late else []
        found += [f"{name}: {note}" for note in one.submission.notes]
        found += [f"{name}: cell {number_} failed" for number_ in one.cells]
    return found


def _check_used(found: list[Result], grading: Grading, extras: Extras) -> None:
    """A slip in a name would lose points without a word."""
    students, most = {one.student for one in found}, {e.name: e.points for e in grading.exercises}
    most |= {question.name: question.points for question in questions(grading)}
    for name, given in (("written", extras.written), ("overrides", extras.overrides)):
        for (student, what), override in given.items():
            if student not in students:
                raise ValueError(f"{name} has student {student!r}; expected a name as in grades.csv")
            if what not in most:
                raise ValueError(f"{name} has {what!r} for {student!r}; expected one of {', '.join(most)}")
            if not 0 <= override.points <= most[what]:
                raise ValueError(f"{name} has {override.points:g} points for {what}; expected 0 to {most[what]}")


def read_points(path: Path, name: str, what: str, reason: str, *, needs_reason: bool) -> dict:
    """Points by (student, exercise or question): columns student, `what`, points, `reason`. Empty points are skipped.

    Raises:
        ValueError: for a file that is no such table, what is no number, a line that stands twice, a missing reason.
    """
    columns = ("student", what, "points", reason)
    found: dict[tuple[str, str], Override] = {}
    for row in read_table(path, name, columns[:3], columns):
        if not row["points"]:
            continue
        key = (row["student"].removeprefix("'"), row[what])
        if key in found:
            raise ValueError(f"{name} is {path}, line {row['line']} gives {key[1]} of {key[0]!r} a second time")
        if needs_reason and not row[reason]:
            raise ValueError(f"{name} is {path}, line {row['line']} gives no {reason}; expected one, for the student")
        found[key] = Override(number(row["points"], name, path, row["line"]), row[reason])
    return found
