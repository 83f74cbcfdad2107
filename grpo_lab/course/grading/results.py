"""What each student has in the end: functions, written answers, overrides, late days; one sum, everywhere."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from grpo_lab.course.grading.grade import INTERRUPTED, Grading
from grpo_lab.course.grading.marks import Graded
from grpo_lab.course.grading.people import Deadline, Person, who
from grpo_lab.course.grading.tables import number, read_table
from grpo_lab.course.release import assignments
from grpo_lab.course.release.written import WRITTEN, Question

SHEET = "written.csv"  # in the results; whatever a teacher types into it stays
NOTHING = "handed in nothing"
STRANGER = "not on the roster, or more than one there fits"


@dataclass(frozen=True)
class Override:
    """What the teacher says an exercise or a question is worth, and why.

    points: None where there is only a comment so far. other: what else stands in that line of the table, by column.
    """

    points: int | float | None
    reason: str
    other: dict[str, str] = field(default_factory=dict)


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
    """One student. `points` by exercise and by question; a written answer that nobody has marked yet is None, and so is
    an exercise that an interrupt has left ungraded.

    student: the name on paper, which may be a pseudonym. key: the name as the grading has it.
    """

    student: str
    person: Person | None
    graded: list[Graded]
    points: dict[str, int | float | None]
    late: int = 0
    by_file: bool = False
    worth: float = 1.0
    remarks: list[str] = field(default_factory=list)
    overridden: dict[str, Override] = field(default_factory=dict)
    written: dict[str, Override] = field(default_factory=dict)
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
    def ungraded(self) -> bool:
        """Whether an interrupt came before one of the notebooks: there is no sum yet."""
        return any(one.submission.problem == INTERRUPTED for one in self.graded)

    @property
    def marked_late(self) -> bool:
        """By the platform, which may know another deadline."""
        return any(one.submission.late for one in self.graded)

    @property
    def unmarked(self) -> list[str]:
        return [name for name, points in self.points.items() if points is None]

    @property
    def said(self) -> list[str]:
        """All that there is to say, in tables, on the page of the class and in the shell."""
        unmarked = [f"not marked yet: {', '.join(self.unmarked)}"] if self.unmarked and not self.ungraded else []
        return [*self.remarks, *unmarked, *self.changed]

    @property
    def changed(self) -> list[str]:
        return [f"{name} set to {given.points:g}: {given.reason}" for name, given in self.overridden.items()]


def questions(grading: Grading) -> list[Question]:
    """The written questions of the assignments that count."""
    return [question for assignment in grading.assignments for question in WRITTEN[assignment[:2]]]


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
    there, named = {one.person.id for one in found if one.person}, _apart(found, extras.roster)
    for person in extras.roster:
        if person.id not in there:
            nothing: dict[str, int | float | None] = dict.fromkeys(_names(grading), 0)
            found.append(_with_given(Result(named[person.id], person, [], nothing, remarks=[NOTHING]), extras))
    _say_who_is_twice(found)
    _check_used(found, grading, extras)
    return sorted(found, key=lambda one: one.student.casefold())


def _apart(found: list[Result], roster: list[Person]) -> dict[str, str]:
    """A name for each on the roster, by id: two of one name have their ids behind it."""
    taken = Counter([one.student for one in found if one.person is None] + [person.name for person in roster])
    return {one.id: one.name if taken[one.name] == 1 else f"{one.name} ({one.id})" for one in roster}


def _say_who_is_twice(found: list[Result]) -> None:
    for one in found:
        also = [o.student for o in found if o is not one and o.person and one.person and o.person.id == one.person.id]
        if also:
            one.remarks.append(f"id {one.person.id} of the roster has handed in as {', '.join(also)}, too")


def _names(grading: Grading) -> list[str]:
    return [e.name for e in grading.exercises] + [question.name for question in questions(grading)]


def _result(student: str, graded: list[Graded], grading: Grading, extras: Extras) -> Result:
    points: dict[str, int | float | None] = dict.fromkeys((e.name for e in grading.exercises), 0)
    points |= {mark.exercise.name: mark.points for one in graded for mark in one.marks}
    person = who(graded[0].submission, extras.roster) if extras.roster else None
    one = Result(student, person, graded, points, remarks=_remarks(graded))
    if extras.roster and person is None:
        one.remarks.append(STRANGER)
    for question in questions(grading):
        points[question.name] = None if any(g.submission.written.get(question.name) for g in graded) else 0
    if one.ungraded:
        waiting = {g.submission.assignment for g in graded if g.submission.problem == INTERRUPTED}
        points |= {name: None for assignment in waiting for name in assignments().get(assignment, ())}
    _with_given(one, extras)
    if extras.deadline:
        _late(one, extras.deadline, extras.times.get(student))
    return one


def _late(one: Result, deadline: Deadline, given: float | None) -> None:
    """By the time that the teacher gives; or else what the platform wrote down, or else the file's own date."""
    handed_in = [graded.submission for graded in one.graded if graded.submission.modified is not None]
    one.by_file = given is None and any(not submission.dated for submission in handed_in)
    times = [submission.modified for submission in handed_in] if given is None else [given]
    one.late = max((deadline.late(time) for time in times), default=0)
    one.worth = deadline.worth(one.late)
    if one.late and one.by_file:
        canvas = ", and not by Canvas" if any(s.platform == "canvas" for s in handed_in) and not one.marked_late else ""
        one.remarks.append(f"late by the file's own date{canvas}")


def _with_given(one: Result, extras: Extras) -> Result:
    """The teacher's own points, for whoever is in the class: also where nothing could be graded."""
    for (student, question), given in extras.written.items():
        if student == one.key:
            one.written[question] = given
            one.points[question] = one.points.get(question) if given.points is None else given.points
    for (student, what), override in extras.overrides.items():
        if student == one.key:
            one.overridden[what] = override
            one.points[what] = override.points
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
    if unknown := [student for student in extras.times if student not in students]:
        raise ValueError(f"times has student {unknown[0]!r}; expected a name as in grades.csv")
    for name, given in (("written", extras.written), ("overrides", extras.overrides)):
        for (student, what), override in given.items():
            if student not in students:
                also = f" ({SHEET} of the results is read, too)" if name == "written" else ""
                raise ValueError(f"{name} has student {student!r}; expected a name as in grades.csv{also}")
            if what not in most:
                raise ValueError(f"{name} has {what!r} for {student!r}; expected one of {', '.join(most)}")
            if override.points is not None and not 0 <= override.points <= most[what]:
                given_ = f"{override.points:g} points for {what} of {student!r}"
                raise ValueError(f"{name} has {given_}; expected 0 to {most[what]}")


def read_points(path: Path, name: str, what: str, reason: str, *, needs_reason: bool) -> dict:
    """Points by (student, exercise or question): columns student, `what`, points, `reason`.

    A line with nothing but a name and an exercise or question is skipped. A comment may come before its points.

    Raises:
        ValueError: for a file that is no such table, what is no number, a line that stands twice, a missing reason.
    """
    columns = ("student", what, "points", reason)
    found: dict[tuple[str, str], Override] = {}
    for row in read_table(path, name, columns[:3], columns):
        other = {column: cell for column, cell in row.items() if column not in (*columns, "line")}
        if not any([row["points"], row[reason], *other.values()]):
            continue
        key = (row["student"], row[what])
        if key in found:
            raise ValueError(f"{name} is {path}, line {row['line']} gives {key[1]} of {key[0]!r} a second time")
        if needs_reason and not row[reason]:
            raise ValueError(f"{name} is {path}, line {row['line']} gives no {reason}; expected one, for the student")
        if needs_reason and not row["points"]:
            raise ValueError(f"{name} is {path}, line {row['line']} gives no points; expected a number")
        points = number(row["points"], name, path, row["line"]) if row["points"] else None
        found[key] = Override(points, row[reason], other)
    return found
