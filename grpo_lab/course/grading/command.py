"""`python -m grpo_lab.course grade`: grade, and write the tables, a page for each student and one for the class."""

import itertools
import re
import shutil
import sys
from pathlib import Path

from tqdm import tqdm

from grpo_lab.base.checks import InputError, check_at_least, check_between
from grpo_lab.base.files import write_atomically
from grpo_lab.course.exercise import fresh_seed
from grpo_lab.course.grading import tables
from grpo_lab.course.grading.class_grades import GRADES_FILE, ClassGrades, GradedSubmission
from grpo_lab.course.grading.class_page import (
    average_sentence,
    class_page,
    mistakes_to_discuss,
    notes_on_submissions,
    num_criteria,
    recognised_mistakes,
    written_page,
)
from grpo_lab.course.grading.collect import is_folder_of_one_student
from grpo_lab.course.grading.grade import grade
from grpo_lab.course.grading.student_page import student_page
from grpo_lab.course.grading.totals import WRITTEN_FILE, written_table
from grpo_lab.course.variant import ClassKey
from grpo_lab.sandbox.isolation import SANDBOXES


def grade_class(
    folder: Path,
    *,
    output: Path | None,
    number: str | None,
    seed: int | None,
    jobs: int,
    time_limit: float,
    trust: bool,
    key: ClassKey | None = None,
) -> int:
    """Run the command `grade`. The options are explained by `python -m grpo_lab.course grade --help`."""
    check_at_least("jobs", jobs, 1)
    check_between("time_limit", time_limit, 1, 86_400)  # with less than a second, right answers would fail
    seed = fresh_seed(seed)
    class_folder = folder.resolve().parent if is_folder_of_one_student(folder) else folder.resolve()
    output = output or class_folder.with_name(f"{class_folder.stem}-grades")
    earlier_grades = ClassGrades.read(output / GRADES_FILE) if (output / GRADES_FILE).is_file() else None
    with tqdm(desc="grading", unit="notebook", disable=None, file=sys.stderr) as bar:

        def progress(num_graded: int, total: int, graded: GradedSubmission, seconds: float) -> None:
            bar.total, bar.n = total, num_graded
            points = "not graded" if graded.submission.problem else f"{graded.total:g} points"
            line = f"{num_graded} of {total}: {graded.submission.student}, {points}, {seconds:.0f} s"
            bar.write(_printable(line, sys.stderr), file=sys.stderr)
            bar.refresh()

        grades = grade(
            folder, seed, number=number, jobs=jobs, time_limit=time_limit, trust=trust, hidden_paths=[output],
            key=key, progress=progress,
        )  # fmt: skip
    if earlier_grades is not None and earlier_grades.assignment_stem != grades.assignment_stem:
        holding = f"is {str(output)!r}, which holds the grades of {earlier_grades.assignment_stem}"
        problem = f"{holding}; {grades.assignment_stem} was graded"
        raise InputError("output", output, "name another folder with --output", problem=problem)
    write_results(grades if earlier_grades is None else grades.merged(earlier_grades), output)
    print(summary(grades, output))
    return 0


def write_results(grades: ClassGrades, folder: Path) -> None:
    """Write all tables and pages. An earlier grades.csv is kept as grades-before-1.csv and so on.

    Each file is written completely or not at all.
    """
    (folder / "students").mkdir(parents=True, exist_ok=True)
    if (folder / "grades.csv").is_file():
        backups = (folder / f"grades-before-{number}.csv" for number in itertools.count(1))
        shutil.copyfile(folder / "grades.csv", next(path for path in backups if not path.exists()))
    platforms = {graded.submission.platform for graded in grades.submissions} - {""}
    texts = {GRADES_FILE: grades.as_json(), "grades.csv": tables.grades_table(grades)} | {
        f"{platform}.csv": tables.PLATFORMS[platform](grades) for platform in platforms
    }
    if len(grades.submissions) == 1:  # Gradescope grades one submission at a time and reads this file
        texts["results.json"] = tables.gradescope_results(grades, grades.submissions[0])
    texts[WRITTEN_FILE] = written_table(grades, folder, num_criteria(grades))
    names = page_names([graded.submission.student for graded in grades.submissions])
    pages = dict(zip(names, grades.submissions, strict=True))
    texts |= {f"students/{name}": student_page(graded, grades) for name, graded in pages.items()}
    texts |= {"class.html": class_page(grades, list(pages)), "written.html": written_page(grades)}
    for name, text in texts.items():
        write_atomically(folder / name, text)


def page_names(students: list[str]) -> list[str]:
    """Return a file name for each student: short, unique, and without characters that are special in a path."""
    names: list[str] = []
    for student in students:
        file_stem = re.sub(r"[^\w.-]", "_", student).lstrip(".")[:60]
        file_stem = file_stem.encode()[:150].decode(errors="ignore") or "student"  # file systems limit the bytes
        used_names = {name.lower() for name in names}
        options = [f"{file_stem}.html", *(f"{file_stem}-{n}.html" for n in range(2, 10_000))]
        names.append(next(option for option in options if option.lower() not in used_names))
    return names


def summary(grades: ClassGrades, folder: Path) -> str:
    """Return the lines that the command prints at the end."""
    lines = [f"to look at: {note}" for note in notes_on_submissions(grades)]
    if grades.isolation not in SANDBOXES:
        lines.insert(0, "note: without a sandbox: the submissions ran as ordinary processes of this machine")
    for mistake in mistakes_to_discuss(recognised_mistakes(grades)):
        numbers = f"(students: {mistake.num_students}, points: {mistake.lost_points:g})"
        lines.append(f"most points lost in {mistake.exercise.name}: {mistake.name} {numbers}")
    written_files = f"grades.csv, class.html and a page for each student in {folder}"
    lines += [f"{average_sentence(grades)}.", f"Graded {grades.assignment_stem}, seed {grades.seed}: {written_files}"]
    return "\n".join(_printable(line) for line in lines)


def _printable(text: str, stream=None) -> str:
    """Return the text with a question mark for each character that is not printable or not in the stream's encoding."""
    encoding = (stream or sys.stdout).encoding or "utf-8"
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    return plain.encode(encoding, "replace").decode(encoding)
