"""Marking without names: student-038715 in the place of a name, in everything that is written but one list."""

import secrets
from pathlib import Path

from grpo_lab.course.grading.grade import Grading
from grpo_lab.course.grading.records import write_whole
from grpo_lab.course.grading.results import Extras, Override, Result
from grpo_lab.course.grading.tables import read_table, to_text

COLUMNS = ("student", "pseudonym")


class Pseudonyms:
    """The list that tells names, a file of the teacher's own. A name keeps its pseudonym as long as the file is there.

    Raises:
        ValueError: for a file that is no such table.
    """

    def __init__(self, path: Path):
        self.path = path
        rows = read_table(path, "pseudonyms", COLUMNS, COLUMNS) if path.exists() else []
        self.known = {row["student"].removeprefix("'"): row["pseudonym"] for row in rows}

    def of(self, name: str) -> str:
        while name not in self.known:
            drawn = f"student-{secrets.randbelow(10**6):06d}"
            if drawn not in self.known.values():
                self.known[name] = drawn
        return self.known[name]

    def with_names(self, extras: Extras) -> Extras:
        """What the teacher wrote down behind pseudonyms, with the names again."""
        names = {pseudonym: name for name, pseudonym in self.known.items()}
        return _renamed(extras, lambda student: names.get(student, student))

    def hide(self, grading: Grading, found: list[Result], extras: Extras) -> Extras:
        """Put pseudonyms in the place of names and file names in all of it, and write the list that tells them."""
        for label, graded in grading.students.items():
            for one in graded:
                one.submission.student, one.submission.number = self.of(label), ""
                one.submission.file = f"{one.submission.assignment or 'a file'}.ipynb"
                one.submission.path = Path(one.submission.file)
        for one in found:
            one.remarks = [remark for remark in one.remarks if not remark.endswith("was left out")]
            one.student = one.key = self.of(one.key)
            one.person = None
        write_whole(self.path, to_text([list(COLUMNS), *map(list, sorted(self.known.items()))]))
        return _renamed(extras, self.of)


def _renamed(extras: Extras, of) -> Extras:
    def renamed(given: dict[tuple[str, str], Override]) -> dict[tuple[str, str], Override]:
        return {(of(student), what): override for (student, what), override in given.items()}

    times = {of(student): time for student, time in extras.times.items()}
    return Extras(extras.roster, extras.deadline, times, renamed(extras.written), renamed(extras.overrides))
