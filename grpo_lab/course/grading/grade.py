"""`python -m grpo_lab.course grade`: grade a class, and write its tables and the pages of HTML.

Each submission runs in a sandbox, and its outcomes are compared with the references'. A problem with one notebook never
affects the others. Whether it comes up in reading, running or comparing, it is recorded for this notebook alone. Each
function is judged on the inputs that students see (seed 0) and on fresh ones (the seed of the grading), so that an
answer written down for the visible inputs earns nothing.
"""

import itertools
import re
import shutil
import sys
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from grpo_lab.base.checks import InputError, check_at_least, check_between
from grpo_lab.base.files import write_atomically
from grpo_lab.course.checking import Verdict, judge
from grpo_lab.course.checking.outcome import Fault, Status
from grpo_lab.course.checking.points import earned_points
from grpo_lab.course.checking.verdict import Part, PartKind
from grpo_lab.course.exercise import Exercise, fresh_seed
from grpo_lab.course.grading import tables
from grpo_lab.course.grading.class_grades import GRADES_FILE, ClassGrades, GradedSubmission
from grpo_lab.course.grading.collect import find_submissions, is_folder_of_one_student
from grpo_lab.course.grading.pages import (
    average_sentence,
    class_page,
    mistakes_to_discuss,
    notes_on_submissions,
    num_criteria,
    recognised_mistakes,
    student_page,
    written_page,
)
from grpo_lab.course.grading.run_notebook import ExerciseRun, NotebookRun, NotebookRunner
from grpo_lab.course.grading.submission import Submission
from grpo_lab.course.variant import ClassKey
from grpo_lab.sandbox.isolation import SANDBOXES, private_folders, strongest_isolation

VISIBLE_SEED = 0  # the seed of the inputs that students see
HARD_CODED = (
    "Right on the inputs that you see, wrong on others of the same kind. Does it hold only for certain shapes or "
    "numbers? Here is what else was found:"
)


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
    grades = grade(
        folder, seed, number=number, jobs=jobs, time_limit=time_limit, trust=trust, hidden_paths=[output], key=key
    )
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
    texts[tables.WRITTEN_FILE] = tables.written_table(grades, folder, num_criteria(grades))
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


def grade(
    folder: Path,
    seed: int,
    *,
    number: str | None = None,
    jobs: int = 1,
    time_limit: float = 30.0,
    trust: bool = False,
    hidden_paths: Iterable[Path] = (),
    key: ClassKey | None = None,
) -> ClassGrades:
    """Grade all submissions in a folder. This writes no file, and prints a line after each submission.

    An interrupt stops all that runs.

    Args:
        folder: A folder with one folder, notebook or archive for each student, or a zip archive of a class.
        seed: The seed from which the fresh inputs are drawn, not 0.
        number: The number of the assignment, such as "02"; None means the one that most students handed in.
        jobs: Number of notebooks that run at the same time.
        time_limit: The seconds that each cell and each exercise may take.
        trust: Whether to run submissions without a sandbox if none is available.
        hidden_paths: Paths that no submission may read, besides the folder, the package and the home folder.
        key: The key of a class that has variants.

    Raises:
        ValueError: If the folder has no submissions, the assignment is unknown, there is no sandbox and `trust` is
            False, or most notebooks have other variants than the key.
    """
    assignment, submissions = find_submissions(folder, number)
    variants = key.exercises(assignment.number) if key else {}
    fingerprint = key.fingerprint(assignment.number) if key else ""
    _note_other_variants(submissions, fingerprint)
    exercises = assignment.exercises | variants
    all_hidden_paths = [folder, *hidden_paths, *private_folders()]
    with NotebookRunner(assignment.exercises, strongest_isolation(trust), time_limit, all_hidden_paths) as runner:
        graded = _grade_submissions(submissions, runner, jobs, seed, exercises)
    return ClassGrades(assignment.stem, seed, runner.isolation, graded, fingerprint, variants)


def _grade_submissions(
    submissions: list[Submission],
    runner: NotebookRunner,
    jobs: int,
    seed: int,
    exercises: dict[str, Exercise],
) -> list[GradedSubmission]:
    """Grade `jobs` submissions at the same time. An exception or an interrupt stops all that run."""
    graded: dict[int, GradedSubmission] = {}
    seconds_by_index: dict[int, float] = {}

    def run(index: int) -> NotebookRun:
        started = time.monotonic()
        try:
            submission = submissions[index]
            return NotebookRun() if submission.problem else runner.run(submission.cells, [VISIBLE_SEED, seed])
        finally:
            seconds_by_index[index] = time.monotonic() - started

    bar = tqdm(desc="grading", total=len(submissions), unit="notebook", disable=None, file=sys.stderr)
    with bar, ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(run, index): index for index in range(len(submissions))}
        try:
            for future in as_completed(futures):
                index = futures[future]
                graded[index] = grade_submission(submissions[index], future, exercises, seed)
                points = "not graded" if graded[index].submission.problem else f"{graded[index].total:g} points"
                line = f"{len(graded)} of {len(submissions)}: {graded[index].submission.student}, {points}"
                line += f", {seconds_by_index.get(index, 0.0):.0f} s"
                bar.write(_printable(line, sys.stderr), file=sys.stderr)
                bar.update()
        except BaseException:
            runner.stop()
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


def grade_submission(
    submission: Submission, future: Future[NotebookRun], exercises: dict[str, Exercise], seed: int
) -> GradedSubmission:
    """Grade one notebook. An error in doing so is recorded for this notebook alone.

    Args:
        future: The run of the notebook in the sandbox.
        exercises: The exercises of the assignment, with the variants of the class.
        seed: The seed from which the fresh inputs are drawn.
    """
    no_points: dict[str, int | float] = dict.fromkeys(exercises, 0)
    try:
        run = future.result()
        if submission.problem:
            return GradedSubmission(submission, no_points)
        graded = {
            name: grade_answer(exercise, explain_undefined(submission, name, run), seed)
            for name, exercise in exercises.items()
        }
    except Exception as error:
        problem = f"it could not be graded ({type(error).__name__}: {str(error)[:300]}): tell your teacher"
        return GradedSubmission(replace(submission, problem=problem), no_points)
    points = {name: earned for name, (earned, _) in graded.items()}
    verdicts = {name: verdict for name, (_, verdict) in graded.items()}
    return GradedSubmission(submission, points, verdicts, run.failed_cells, seed)


def explain_undefined(submission: Submission, name: str, run: NotebookRun) -> ExerciseRun:
    """Return the run of an exercise; for an undefined function with the reason as its problem, if it is known.

    Known reasons are: the cell is a text cell, it failed, or it defines a function of another name.

    Args:
        name: The name of the exercise.
        run: The run of the notebook.
    """
    exercise_run = run.exercises[name]
    if not exercise_run.is_undefined:
        return exercise_run
    if name in submission.exercises_as_text:
        is_text = f"The cell of `{name}` is text (Markdown), and not code: nothing in it ran."
        return ExerciseRun(problem=f"{is_text} Make it a code cell again.")
    for cell in submission.cells:
        if cell.exercise == name and cell.number in run.failed_cells:
            return ExerciseRun(problem=f"Its cell failed: {run.failed_cells[cell.number]}")
        if cell.exercise == name and cell.defines:
            return ExerciseRun(problem=f"You defined `{cell.defines[-1]}`; expected a function named `{name}`.")
    return exercise_run


def grade_answer(exercise: Exercise, run: ExerciseRun, seed: int) -> tuple[int | float, Verdict]:
    """Return the points of an answer, by its outcomes alone, and the verdict that the student reads.

    seed: The seed from which the fresh inputs were drawn.
    """
    try:
        if run.problem:
            status = Status.NOT_STARTED if run.is_undefined else Status.MALFORMED
            return 0, _sentence_verdict(exercise, status, run.problem)
        visible = judge(exercise, run.outcomes[VISIBLE_SEED], VISIBLE_SEED)
        fresh = judge(exercise, run.outcomes[seed], seed)
        points = earned_points(exercise.points, visible.shares, fresh.shares)
    except Exception as error:  # the outcomes come from the student's process, and may not end the grading of others
        message = f"What it returned could not be judged: {type(error).__name__}: {error}"
        return 0, _sentence_verdict(exercise, Status.MALFORMED, message[:500])
    if visible.right and not fresh.right:
        # The verdict has sentences only, so that it shows no fresh input.
        verdict = _sentence_verdict(exercise, fresh.status, f"{HARD_CODED}\n{fresh.message}")
        return points, replace(verdict, fault=fresh.fault, misconceptions=fresh.misconceptions)
    return points, visible


def _sentence_verdict(exercise: Exercise, status: Status, text: str) -> Verdict:
    parts = tuple(Part(PartKind.SENTENCES, line) for line in text.splitlines() if line.strip())
    return Verdict(exercise.name, status, parts, fault=Fault.STOPPED if status == Status.MALFORMED else Fault.NONE)
