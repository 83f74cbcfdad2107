"""Marking without names: student-038715 in the place of a name, in everything that is written but one list."""

import secrets
from pathlib import Path

from grpo_lab.course.grading.grade import Grading
from grpo_lab.course.grading.marks import Graded
from grpo_lab.course.grading.records import write_whole
from grpo_lab.course.grading.results import Extras, Result
from grpo_lab.course.grading.tables import read_table, to_text, unread_columns

COLUMNS = ("student", "pseudonym")
A_FILE = "a file"


class Pseudonyms:
    """The list that tells names, a file of the teacher's own. A name keeps its pseudonym as long as the file is there.

    Raises:
        ValueError: for a file that is no such table.
    """

    def __init__(self, path: Path):
        self.path = path
        rows = read_table(path, "pseudonyms", COLUMNS, COLUMNS) if path.exists() else []
        if other := unread_columns(rows, COLUMNS):  # it will be written anew
            raise ValueError(f"pseudonyms is {path}, which has a column {other[0]!r}; expected {', '.join(COLUMNS)}")
        self.known = {row["student"]: row["pseudonym"] for row in rows}

    def of(self, name: str) -> str:
        while name not in self.known:
            drawn = f"student-{secrets.randbelow(10**6):06d}"
            if drawn not in self.known.values():
                self.known[name] = drawn
        return self.known[name]

    def with_names(self, given: dict) -> dict:
        """What the teacher wrote down behind pseudonyms, by (student, exercise or question), with the names again."""
        return {(self.name(student), what): one for (student, what), one in given.items()}

    def name(self, student: str) -> str:
        return next((name for name, pseudonym in self.known.items() if pseudonym == student), student)

    def hide(self, grading: Grading, found: list[Result], extras: Extras) -> Extras:
        """Put pseudonyms in the place of names and file names in all of it, and write the list that tells them.

        Results are put into the order of pseudonyms: that of names would tell something.
        """
        before = set(self.known)
        for one in found:
            one.remarks = [_without_files(remark, one.graded) for remark in one.remarks]
        for graded in grading.students.values():
            for one in graded:
                submission = one.submission
                submission.notes = [_without_files(note, graded) for note in submission.notes]
                submission.problem = _without_files(submission.problem, graded)
                submission.file = f"{submission.assignment or A_FILE}.ipynb"
        renamed = {}
        for label, graded in grading.students.items():
            for one in graded:
                renamed[one.submission.student] = self.of(label)
                one.submission.student, one.submission.number, one.submission.email = self.of(label), "", ""
                one.submission.path = Path(one.submission.file)
        for one in found:
            one.student = one.key = self.of(one.key)
            one.person = None
        found.sort(key=lambda one: one.student)
        grading.before = {renamed[student]: points for student, points in grading.before.items()}
        if set(self.known) != before:
            write_whole(self.path, to_text([list(COLUMNS), *map(list, sorted(self.known.items()))], for_people=True))
        written, overrides = (
            {(self.of(student), what): one for (student, what), one in given.items()}
            for given in (extras.written, extras.overrides)
        )
        return Extras(extras.roster, extras.deadline, {}, written, overrides)


def _without_files(text: str, graded: list[Graded]) -> str:
    """A remark, a note or a problem without what the student called a file."""
    for one in graded:
        if text.startswith(f"{one.submission.name}: "):
            rest = text.removeprefix(f"{one.submission.name}: ")
            return f"{one.submission.assignment or A_FILE}: {_without_files(rest, [])}"
    if text.endswith("was left out") and not text.startswith("cell "):
        return f"{A_FILE} was left out"
    if " has handed in as " in text:
        return "the same person has handed in under another name, too"
    return "no notebook (.ipynb)" if text.startswith("no notebook (.ipynb)") else text
