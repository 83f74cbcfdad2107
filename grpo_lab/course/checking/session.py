"""The functions of a student's session: check, hint and progress, with the last verdict on each exercise."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from grpo_lab.base.checks import check_choice
from grpo_lab.base.display import View, markdown_table
from grpo_lab.base.language import _, fill
from grpo_lab.course.checking.cell_history import CELL_HISTORY, is_from_library
from grpo_lab.course.checking.judging import judge, mismatch_verdict
from grpo_lab.course.checking.outcome import Fault, Status
from grpo_lab.course.checking.run_cases import expected_outcomes, run_student
from grpo_lab.course.checking.stand_ins import library_stand_ins, without_body, without_stand_ins
from grpo_lab.course.checking.verdict import STYLES, Part, PartKind, Verdict
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.exercises import NAMES, exercises_of_notebook, find_exercise


@dataclass
class LastCheck:
    """The last check of an exercise.

    Attributes:
        function: The function that was checked.
        text: The text that the notebook's function with the exercise's name had at the time of the check; None if it
            could not be read.
    """

    exercise: Exercise
    verdict: Verdict
    function: Callable
    text: str | None

    @property
    def is_outdated(self) -> bool:
        """True if the notebook has another function now, so that the verdict does not apply to it."""
        name = self.exercise.name
        current = CELL_HISTORY.object_named(name) if getattr(self.function, "__name__", "") == name else None
        if self.verdict.fault == Fault.STALE or CELL_HISTORY.mismatch(self.function) or CELL_HISTORY.mismatch(current):
            return True
        # A cell of the assignment that trains with the functions may have imported the library's under this name.
        if is_from_library(CELL_HISTORY.object_named(name)):
            return False
        return CELL_HISTORY.text(name) != self.text


STAND_IN_NOTE = (
    "Not defined in your notebook: {0}. The check lent the library's version, as the grading does; your own call "
    "raises NameError until the cell that defines it has run."
)
LAST_CHECKS: dict[str, LastCheck] = {}  # the keys are the names of the exercises
_hints_shown: dict[str, int] = {}
CELL_HISTORY.watch()


def check(function: Callable, exercise: Exercise | str | None = None, seed: int = 0) -> Verdict:
    """Run a function on every case of its exercise, and return a verdict that explains what is right or wrong.

    While the function runs, the earlier exercises of the notebook that it calls are the library's functions, as in the
    grading. So mistakes in them have no effect on the verdict. The verdict names those that the notebook has not
    defined.

    In a notebook, the first line of the verdict names the cell that defined the function. The function is not judged if
    it differs from the page: its cell was run again and failed, or JupyterLab has saved another text of it. A change
    that was neither run nor saved cannot be seen.

    Args:
        function: The student's function.
        exercise: The exercise or its name; None looks it up by the function's name.
        seed: The seed from which the inputs are drawn.

    Raises:
        KeyError: If there is no exercise of that name.
    """
    if not isinstance(exercise, Exercise):
        exercise = find_exercise(function if exercise is None else exercise)
    CELL_HISTORY.watch()
    if mismatch := CELL_HISTORY.mismatch(function):
        verdict = mismatch_verdict(exercise, mismatch)
    else:
        with without_stand_ins():
            expected_outcomes(exercise, seed)  # computed before the student's code can change anything
            with library_stand_ins(function, exercise) as undefined_names, without_body(exercise):
                outcomes = run_student(function, exercise, seed)
            verdict = replace(judge(exercise, outcomes, seed), judged_cell=CELL_HISTORY.judged_cell(function))
            if undefined_names:
                note = fill(STAND_IN_NOTE, ", ".join(f"`{name}`" for name in undefined_names))
                verdict = replace(verdict, parts=(*verdict.parts, Part(PartKind.SENTENCES, note)))
    LAST_CHECKS[exercise.name] = LastCheck(exercise, verdict, function, CELL_HISTORY.text(exercise.name))
    return verdict


def finished() -> dict[str, Callable]:
    """Return the checked functions whose values and gradients are right on all ordinary inputs, by name.

    `with using(**finished()): ...` trains with them. A function that fails on extreme inputs alone is included.
    """
    shares = {name: last.verdict.shares for name, last in LAST_CHECKS.items()}
    right = [name for name, share in shares.items() if share.get("values") == 1 and share.get("gradients", 1) == 1]
    return {name: LAST_CHECKS[name].function for name in right}


def progress(notebook: str | None = None) -> View:
    """Return a table of the exercises of a notebook, with their points and status.

    Args:
        notebook: The number of the notebook, such as "04". None lists the notebooks in which something was checked.

    Raises:
        ValueError: If no notebook of that number has exercises.
    """
    if notebook is not None:
        check_choice("notebook", notebook, list(NAMES))
    notebooks = {last.exercise.notebook for last in LAST_CHECKS.values()} if notebook is None else {notebook}
    exercises = {
        name: exercise for number in sorted(notebooks) for name, exercise in exercises_of_notebook(number).items()
    }
    exercises |= {name: last.exercise for name, last in LAST_CHECKS.items() if name not in exercises}
    if not exercises:
        return View(text := _("Nothing has been checked yet."), text)
    last_checks = [LAST_CHECKS[name] for name in exercises if name in LAST_CHECKS]
    points = round(sum(last.verdict.points for last in last_checks if not last.is_outdated), 1)
    max_points = sum(exercise.points for exercise in exercises.values())
    table = markdown_table((_("exercise"), _("points"), _("status")), map(_row, exercises.values()))
    return View(text := f"{table}\n\n{_(fill('{0} of {1} points.', format(points, 'g'), max_points))}", text)


def _row(exercise: Exercise) -> tuple[str, ...]:
    not_started = STYLES[Status.NOT_STARTED]
    if exercise.name not in LAST_CHECKS:
        return exercise.name, f"0 / {exercise.points}", f"{not_started.sign} {_(not_started.title)}"
    last = LAST_CHECKS[exercise.name]
    if last.is_outdated:
        remark = f"{not_started.sign} {_('changed since it was checked: check it again')}"
        return exercise.name, f"0 / {exercise.points}", remark
    style = STYLES[last.verdict.status]
    points = f"{last.verdict.points:g} / {exercise.points}"
    return exercise.name, points, f"{style.sign} {_(style.title)}"


def hint(name_or_function: str | Callable) -> View:
    """Return the hints for an exercise that were shown so far, and one more.

    name_or_function: The name of the exercise, or a function of that name.
    """
    exercise = find_exercise(name_or_function)
    total = len(exercise.hints)
    number_shown = _hints_shown[exercise.name] = min(_hints_shown.get(exercise.name, 0) + 1, total)
    remaining = total - number_shown
    ending = _(fill("Ask again for the next one; {0} more.", remaining) if remaining else "That was the last.")
    hints = [
        (_(fill("Hint {0} of {1}", number, total)), _(text))
        for number, text in enumerate(exercise.hints[:number_shown], 1)
    ]
    folds = [f"<details><summary>{title}</summary>\n\n{text}\n\n</details>" for title, text in hints]
    folds[-1] = folds[-1].replace("<details>", "<details open>", 1)
    return View("\n".join([*folds, "", ending]), "\n".join([*(f"{title}: {text}" for title, text in hints), ending]))
