"""A student's session: check, hint and progress, and the last verdict of each exercise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from grpo_lab.base.checks import check_choice
from grpo_lab.base.display import View, markdown_table
from grpo_lab.base.language import _, fill
from grpo_lab.course.checking.cells import CELLS
from grpo_lab.course.checking.judging import judge, mismatch_verdict
from grpo_lab.course.checking.outcome import expected_outcomes
from grpo_lab.course.checking.run_case import run_student
from grpo_lab.course.checking.stand_ins import neighbours, suspended, without_body
from grpo_lab.course.checking.verdict import SIGNS, TITLES, Part, Verdict
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.exercises import NAMES, find_exercise, of_notebook


@dataclass
class Entry:
    """The last check of an exercise: of which function, and the text of the notebook's function of that name."""

    exercise: Exercise
    verdict: Verdict
    function: Callable
    text: str | None

    @property
    def changed(self) -> bool:
        """Say whether the notebook has another function by now; then the verdict says nothing of it."""
        name = self.exercise.name
        current = CELLS.current(name) if getattr(self.function, "__name__", "") == name else None
        if self.verdict.fault == "stale" or CELLS.mismatch(self.function) or CELLS.mismatch(current):
            return True
        if _is_of_library(CELLS.current(name)):  # imported since, by a cell that puts the functions to work
            return False
        return CELLS.text(name) != self.text


def _is_of_library(function: object) -> bool:
    return str(getattr(function, "__module__", "")).partition(".")[0] == "grpo_lab"


LENT = (
    "Not defined in your notebook: {0}. The check lent the library's version, as the grading does; your own call "
    "raises NameError until the cell that defines it has run."
)
ENTRIES: dict[str, Entry] = {}
_hints_shown: dict[str, int] = {}
CELLS.watch()


def check(function: Callable, exercise: Exercise | str | None = None, seed: int = 0) -> Verdict:
    """Run `function` on every case of its exercise and say what is right or wrong about it.

    Other exercises that it calls are always the library's functions: nobody pays for a mistake made elsewhere. One that
    the notebook has not defined so far is lent as well, as in the grading, and the verdict names it. In a notebook, the
    first line names the cell whose function is judged. A function is not judged if its cell was run again
    and failed, or if JupyterLab saved the notebook with another text of it since: then the page has another one. A
    change that was neither run nor saved is not seen.

    Args:
        function: what the student wrote.
        exercise: None looks it up by the function's name.
        seed: of the inputs.

    Raises:
        KeyError: if there is no exercise of that name.
    """
    if not isinstance(exercise, Exercise):
        exercise = find_exercise(function if exercise is None else exercise)
    CELLS.watch()
    if mismatch := CELLS.mismatch(function):
        verdict = mismatch_verdict(exercise, mismatch)
    else:
        with suspended():
            expected_outcomes(exercise, seed)  # before anything of the student's runs
            with neighbours(function, exercise) as lent, without_body(exercise):
                outcomes = run_student(function, exercise, seed)
            verdict = replace(judge(exercise, outcomes, seed), judged=_judged(function))
            if lent:
                verdict = replace(verdict, parts=(*verdict.parts, _lent_part(lent)))
    ENTRIES[exercise.name] = Entry(exercise, verdict, function, CELLS.text(exercise.name))
    return verdict


def _lent_part(names: Sequence[str]) -> Part:
    """Say which functions of the notebook were missing: without this check, a call raises NameError."""
    quoted = ", ".join(f"`{name}`" for name in names)
    return Part("say", fill(LENT, quoted))


def _judged(function: Callable) -> str:
    """Say which cell's function is judged; nothing where no cell made it."""
    origin = CELLS.origin(function)
    if origin is None:
        return ""
    count, failed_count = origin
    if count is None:
        return "judged: the function of this cell"
    if failed_count is not None:
        return fill("judged: the cell that ran as In [{0}]; another one with this name failed (In [{1}])", *origin)
    return fill("judged: the cell that ran as In [{0}]", count)


def finished() -> dict[str, Callable]:
    """The functions with right values, and gradients where they are asked for, by name.

    `with using(**finished()): ...` trains with them: a formula that is right gets its run, even if it overflows on an
    extreme input.
    """
    return {name: entry.function for name, entry in ENTRIES.items() if _formula_is_right(entry.verdict)}


def _formula_is_right(verdict: Verdict) -> bool:
    shares = verdict.properties
    return shares.get("values") == 1 and shares.get("gradients", 1) == 1


def progress(notebook: str | None = None) -> View:
    """The exercises of a notebook ("04"), with points and status; None means those of what was checked.

    Raises:
        ValueError: if no notebook of that number has exercises.
    """
    if notebook is not None:
        check_choice("notebook", notebook, list(NAMES))
    notebooks = {entry.exercise.notebook for entry in ENTRIES.values()} if notebook is None else {notebook}
    exercises = {name: exercise for number in sorted(notebooks) for name, exercise in of_notebook(number).items()}
    exercises |= {name: entry.exercise for name, entry in ENTRIES.items() if name not in exercises}
    if not exercises:
        return View(text := _("Nothing has been checked yet."), text)
    entries = [ENTRIES[name] for name in exercises if name in ENTRIES]
    reached = round(sum(entry.verdict.points for entry in entries if not entry.changed), 1)
    points = sum(exercise.points for exercise in exercises.values())
    table = markdown_table((_("exercise"), _("points"), _("status")), map(_row, exercises.values()))
    return View(text := f"{table}\n\n{_(fill('{0} of {1} points.', format(reached, 'g'), points))}", text)


def _row(exercise: Exercise) -> tuple[str, ...]:
    if exercise.name not in ENTRIES:
        return exercise.name, f"0 / {exercise.points}", f"{SIGNS['not started']} {_(TITLES['not started'])}"
    entry = ENTRIES[exercise.name]
    if entry.changed:
        remark = f"{SIGNS['not started']} {_('changed since it was checked: check it again')}"
        return exercise.name, f"0 / {exercise.points}", remark
    status = entry.verdict.status
    points = f"{entry.verdict.points:g} / {exercise.points}"
    return exercise.name, points, f"{SIGNS[status]} {_(TITLES[status])}"


def hint(name_or_function: str | Callable) -> View:
    """The first hint to an exercise; called again, also the next one."""
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
