"""`python -m grpo_lab.course grade`: grade, and write the tables, a page for each student and one of the class."""

import itertools
import re
import shutil
import sys
from pathlib import Path

from tqdm import tqdm

from grpo_lab.base.checks import InputError, check_at_least, check_between
from grpo_lab.base.parser import write_at_once
from grpo_lab.course.exercise import fresh_seed
from grpo_lab.course.grading import tables
from grpo_lab.course.grading.classpage import (
    averaged,
    class_page,
    criteria,
    mistakes,
    to_discuss,
    to_look_at,
    written_page,
)
from grpo_lab.course.grading.collect import own_folder
from grpo_lab.course.grading.grade import GRADES, ClassGrades, GradedSubmission, grade
from grpo_lab.course.grading.studentpage import student_page
from grpo_lab.course.grading.totals import WRITTEN, written_table
from grpo_lab.course.variant import ClassKey
from grpo_lab.sandbox.isolation import SANDBOXES


def grade_class(
    folder: Path, *, output: Path | None, assignment, seed, jobs, time_limit, trust, key: ClassKey | None = None
) -> int:
    """Run the command; the options are those of `python -m grpo_lab.course grade --help`."""
    check_at_least("jobs", jobs, 1)
    check_between("time_limit", time_limit, 1, 86_400)  # below, right answers would fail
    seed = fresh_seed(seed)
    graded_folder = folder.resolve().parent if own_folder(folder) else folder.resolve()  # of one student: the class's
    output = output or graded_folder.with_name(f"{graded_folder.stem}-grades")
    earlier = ClassGrades.read(output / GRADES) if (output / GRADES).is_file() else None
    with tqdm(desc="grading", unit="notebook", disable=None, file=sys.stderr) as bar:

        def progress(marked: int, total: int, graded: GradedSubmission, seconds: float) -> None:
            bar.total, bar.n = total, marked
            points = "not graded" if graded.submission.problem else f"{graded.total:g} points"
            line = f"{marked} of {total}: {graded.submission.student}, {points}, {seconds:.0f} s"
            bar.write(_printable(line, sys.stderr), file=sys.stderr)
            bar.refresh()

        grading = grade(
            folder, seed, assignment=assignment, jobs=jobs, seconds=time_limit, trust=trust, hidden=[output],
            key=key, progress=progress,
        )  # fmt: skip
    if earlier is not None and earlier.assignment != grading.assignment:
        problem = f"is {str(output)!r}, which holds the grades of {earlier.assignment}; {grading.assignment} was graded"
        raise InputError("output", output, "name another folder with --output", found=problem)
    write_results(grading if earlier is None else grading.merged(earlier), output)
    print(summary(grading, output))
    return 0


def write_results(grading: ClassGrades, folder: Path) -> None:
    """Write everything; each file whole or not at all. Each table of before stays beside it, numbered."""
    (folder / "students").mkdir(parents=True, exist_ok=True)
    if (folder / "grades.csv").is_file():
        backups = (folder / f"grades-before-{number}.csv" for number in itertools.count(1))
        shutil.copyfile(folder / "grades.csv", next(path for path in backups if not path.exists()))
    platforms = {graded.submission.platform for graded in grading.students} - {""}
    texts = {GRADES: grading.as_json(), "grades.csv": tables.grades(grading)} | {
        f"{platform}.csv": tables.PLATFORMS[platform](grading) for platform in platforms
    }
    if len(grading.students) == 1:  # what Gradescope takes of a submission that it has graded
        texts["results.json"] = tables.gradescope_results(grading, grading.students[0])
    texts[WRITTEN] = written_table(grading, folder, criteria(grading))
    names = page_names([graded.submission.student for graded in grading.students])
    pages = dict(zip(names, grading.students, strict=True))
    texts |= {f"students/{name}": student_page(graded, grading) for name, graded in pages.items()}
    texts |= {"class.html": class_page(grading, list(pages)), "written.html": written_page(grading)}
    for name, text in texts.items():
        write_at_once(folder / name, text)


def page_names(students: list[str]) -> list[str]:
    """A file name for each student, short, without anything that means something in a path, and no two alike."""
    names: list[str] = []
    for student in students:
        file_stem = re.sub(r"[^\w.-]", "_", student).lstrip(".")[:60]
        file_stem = file_stem.encode()[:150].decode(errors="ignore") or "student"  # a file system counts bytes
        used_names = {name.lower() for name in names}
        options = [f"{file_stem}.html", *(f"{file_stem}-{n}.html" for n in range(2, 10_000))]
        names.append(next(option for option in options if option.lower() not in used_names))
    return names


def summary(grading: ClassGrades, folder: Path) -> str:
    """The lines that the shell prints at the end."""
    lines = [f"to look at: {line}" for line in to_look_at(grading)]
    if grading.wall not in SANDBOXES:
        lines.insert(0, "note: without a sandbox: the submissions ran as ordinary processes of this machine")
    for loss in to_discuss(mistakes(grading)):
        lines.append(f"most points lost in {loss[0].name}: {loss[1]} (students: {loss[2]}, points: {loss[3]:g})")
    written = f"grades.csv, class.html and a page for each student in {folder}"
    lines += [f"{averaged(grading)}.", f"Graded {grading.assignment}, seed {grading.seed}: {written}"]
    return "\n".join(_printable(line) for line in lines)


def _printable(text: str, stream=None) -> str:
    """Replace by question marks what is not printable, or what this terminal cannot encode."""
    encoding = (stream or sys.stdout).encoding or "utf-8"
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    return plain.encode(encoding, "replace").decode(encoding)
