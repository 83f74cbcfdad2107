"""Who is in the class, and when they handed in: a roster, a deadline, late days."""

import math
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from grpo_lab.checks import check_at_least, check_between
from grpo_lab.course.grading.submissions import Submission
from grpo_lab.course.grading.tables import read_table, unread_columns

COLUMNS = ("id", "name", "email", "group", "canvas id", "sis user id", "moodle id")


@dataclass(frozen=True)
class Person:
    """A line of the roster. canvas, sis, moodle: the numbers that these platforms have for this person."""

    id: str
    name: str
    email: str = ""
    group: str = ""
    canvas: str = ""
    sis: str = ""
    moodle: str = ""


@dataclass(frozen=True)
class Deadline:
    """Points are worth less by `cost` for each day begun after `end`, for at most `days` days; later, nothing.

    end: in local time, if it has no zone. cost: a share of what was earned, such as 0.1.
    """

    end: datetime
    days: int = 0
    cost: float = 0.0

    def __post_init__(self):
        check_at_least("late_days", self.days, 0)
        check_between("late_cost", self.cost, 0.0, 1.0)

    def late(self, handed_in: float | None) -> int:
        """Days begun after the end; 0 where nobody knows when it was handed in."""
        seconds = 0.0 if handed_in is None else handed_in - self.end.timestamp()
        return max(0, math.ceil(seconds / 86_400))

    def worth(self, late: int) -> float:
        """The share of the points that counts."""
        return 0.0 if late > self.days else max(0.0, 1.0 - self.cost * late)

    def rule(self) -> str:
        cost = f"{self.cost:.0%} off for each day begun, for {self.days} days; nothing after that" if self.days else ""
        return f"Due {self.end:%Y-%m-%d %H:%M}; {cost or 'nothing counts after that'}."


def read_deadline(text: str, days: int, cost: float) -> Deadline:
    try:
        return Deadline(datetime.fromisoformat(text), days, cost)
    except ValueError as error:
        if "late_" in str(error):
            raise
        raise ValueError(f"deadline is {text!r}; expected a date and time such as 2026-12-01T23:59") from None


def read_roster(path: Path) -> list[Person]:
    """The class: the columns of COLUMNS, of which id or name must be there.

    Raises:
        ValueError: for a file that is no such table, a line with neither, and an id that stands twice.
    """
    rows = read_table(path, "roster", (), COLUMNS)
    if not any(row["id"] or row["name"] for row in rows):
        raise ValueError(f"roster is {path}, which names nobody; expected a column id or name, and a line a student")
    if other := unread_columns(rows, COLUMNS):
        print(f"note: roster is {path}, whose columns {', '.join(other)} are not read; known: {', '.join(COLUMNS)}")
    people = [
        Person(row["id"] or row["name"], row["name"] or row["id"], *(row[column] for column in COLUMNS[2:]))
        for row in rows
    ]
    ids = [person.id for person in people]
    if twice := sorted({one for one in ids if ids.count(one) > 1}):
        raise ValueError(f"roster is {path}, where id {twice[0]!r} stands twice; expected each once")
    return people


def read_times(path: Path) -> dict[str, float]:
    """When each student handed in: columns student and time. For platforms whose files do not say it."""
    found = {}
    for row in read_table(path, "times", ("student", "time"), ("student", "time")):
        try:
            found[row["student"]] = datetime.fromisoformat(row["time"]).timestamp()
        except ValueError:
            raise ValueError(
                f"times is {path}, line {row['line']} has {row['time']!r}; expected a time such as 2026-12-01T23:59"
            ) from None
    return found


def who(submission: Submission, roster: Iterable[Person]) -> Person | None:
    """The person of the roster whose submission it is; None if there is none, or if there are two.

    By the platform's number or e-mail address; by what its folder or file is called: an id, an e-mail address or what
    stands before its @, the name, or the name as Canvas joins it.
    """
    name, number = submission.student, submission.number
    for same in (
        lambda person: number and number in (person.id, getattr(person, submission.platform, "")),
        lambda person: submission.email and person.email.lower() == submission.email.lower(),
        lambda person: person.id == name,
        lambda person: person.email and name.lower() in (person.email.lower(), person.email.lower().partition("@")[0]),
        lambda person: _plain(person.name) == _plain(name),
        lambda person: _plain(name) in _joined(person.name),
    ):
        found = [person for person in roster if same(person)]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def meant(wanted: str, submission: Submission, person: Person | None) -> bool:
    """Whether a word of the teacher's names whoever handed this in: by name, number, id or e-mail address."""
    names = [submission.student, submission.number]
    names += [person.name, person.id, person.email] if person else []
    return wanted.casefold() in [name.casefold() for name in names if name]


def _plain(name: str) -> str:
    """Letters and digits alone, without accents: what survives the ways in which names are written."""
    bare = unicodedata.normalize("NFKD", name).casefold()
    return re.sub(r"[\W_]", "", "".join(c for c in bare if not unicodedata.combining(c)))


def _joined(name: str) -> tuple[str, ...]:
    """ "Ada Lovelace" as adalovelace and lovelaceada, and "Lovelace, Ada"; any of several words may begin a surname."""
    words = [_plain(word) for word in re.split(r"[\s,]+", name) if _plain(word)]
    return tuple("".join([*words[first:], *words[:first]]) for first in range(len(words)))
