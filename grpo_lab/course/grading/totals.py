"""`python -m grpo_lab.course totals`: one table over assignments, from what `grade` wrote; with points for words.

`grade` leaves `written.csv` beside its tables: a row a student, for the points that the teacher gives to the answer in
words. What is written there is never overwritten.
"""

import csv
import io
from pathlib import Path

from grpo_lab.base.checks import InputError
from grpo_lab.base.parser import write_at_once
from grpo_lab.course.grading.grade import GRADES, ClassGrades, GradedSubmission
from grpo_lab.course.grading.tables import MARK, to_text
from grpo_lab.course.release import number_of

WRITTEN = "written.csv"
_Row = dict[str, str]


def written_table(grading: ClassGrades, folder: Path, criteria: int | None) -> str:
    """written.csv: the rows of before as they are, and new students with blank points.

    criteria: of a full answer, a point each; None where nobody knows them.
    """
    old_rows = _rows(folder / WRITTEN)
    rows: list[list] = [["student", "id", "points", "out of"]]
    for graded in grading.students:
        student, number = graded.submission.student, graded.submission.number
        row = next((row for row in old_rows if (row.get("student"), row.get("id")) == (student, number)), {})
        out_of = row.get("out of") or ("" if criteria is None else criteria)
        rows.append([student, number, row.get("points", ""), out_of])
    return MARK + to_text(rows)


def write_totals(folders: list[Path], output: Path) -> int:
    """Write the table over the assignments in these folders of `grade`.

    Raises:
        InputError: for a folder without grades, for two of one assignment, and for points that are no number.
    """
    gradings: dict[str, tuple[ClassGrades, Path]] = {}
    for folder in folders:
        if not (folder / GRADES).is_file():
            raise InputError("folder", str(folder), "expected a folder that `grade` wrote")
        grading = ClassGrades.read(folder / GRADES)
        if grading.assignment in gradings:
            raise InputError(
                "folder", str(folder), f"{grading.assignment} is in {gradings[grading.assignment][1]}, too"
            )
        gradings[grading.assignment] = grading, folder
    write_at_once(output, totals(dict(sorted(gradings.items()))))
    print(output)
    return 0


def totals(gradings: dict[str, tuple[ClassGrades, Path]]) -> str:
    """The table: a row a student, with the points of each assignment, of its answer in words, and the sum."""
    names: dict[str, GradedSubmission] = {}
    columns: list[tuple[str, dict[str, str], float]] = []  # head, points by student, out of
    remarks: dict[str, list[str]] = {}
    for assignment, (grading, folder) in gradings.items():
        number, by_student = number_of(assignment), {_identity(graded): graded for graded in grading.students}
        for key, graded in by_student.items():
            names.setdefault(key, graded)
            if graded.submission.problem:
                remarks.setdefault(key, []).append(f"{number} could not be graded")
        points = {key: f"{g.total:g}" for key, g in by_student.items() if not g.submission.problem}
        columns.append((number, points, grading.out_of))
        own_rows = {(row.get("student"), row.get("id")): row for row in _rows(folder / WRITTEN)}
        written = {key: own_rows.get((g.submission.student, g.submission.number), {}) for key, g in by_student.items()}
        if any(row.get("points", "").strip() for row in written.values()):
            points_in_words = {
                key: row["points"].strip() for key, row in written.items() if row.get("points", "").strip()
            }
            out_of = max(_number(row.get("out of") or "0", folder) for row in written.values())
            columns.append((f"{number} in words", points_in_words, out_of))
            for value in points_in_words.values():
                _number(value, folder)
        for key in names.keys() - by_student.keys():
            remarks.setdefault(key, []).append(f"{number} was not handed in")
    rows: list[list] = [["student", "id", *(head for head, _, _ in columns), "points", "out of", "remarks"]]
    for key, graded in sorted(names.items(), key=lambda item: item[1].submission.student.casefold()):
        cells = [points.get(key, "") for _, points, _ in columns]
        total, out_of = sum(float(cell) for cell in cells if cell), sum(column[2] for column in columns)
        who = [graded.submission.student, graded.submission.number if graded.submission.platform == "canvas" else ""]
        rows.append([*who, *cells, f"{round(total, 2):g}", f"{out_of:g}", "; ".join(remarks.get(key, ()))])
    return MARK + to_text(rows)


def _identity(graded: GradedSubmission) -> str:
    """A student over several assignments: Canvas has one number each, Moodle another one in each assignment."""
    submission = graded.submission
    return submission.number if submission.platform == "canvas" else submission.student.casefold()


def _rows(file: Path) -> list[_Row]:
    if not file.is_file():
        return []
    text = file.read_text(encoding="utf-8-sig")
    return list(csv.DictReader(io.StringIO(text), delimiter=";" if ";" in text.partition("\n")[0] else ","))


def _number(text: str, folder: Path) -> float:
    try:
        return float(text.replace(",", "."))
    except ValueError:
        raise InputError("points", text, f"expected a number in {folder / WRITTEN}") from None
