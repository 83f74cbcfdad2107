"""What happened in this session: the last verdict of each exercise, how often it was tried, which hints were read."""

import html
from collections.abc import Callable
from dataclasses import dataclass

from grpo_lab.course import exercises as registry
from grpo_lab.course.checking.verdict import SIGNS, TITLES, Verdict, prose
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.exercises import exercise as find_exercise


@dataclass
class Entry:
    exercise: Exercise
    verdict: Verdict
    function: Callable
    attempts: int = 0
    solved: bool = False


ENTRIES: dict[str, Entry] = {}
_hints_shown: dict[str, int] = {}


def add(verdict: Verdict, exercise: Exercise, function: Callable) -> None:
    """A check of a function that is not written yet is no attempt."""
    tried = verdict.status != "not started"
    entry = ENTRIES.setdefault(exercise.name, Entry(exercise, verdict, function))
    entry.exercise, entry.verdict, entry.function = exercise, verdict, function
    entry.attempts, entry.solved = entry.attempts + tried, entry.solved or verdict.right


def clear() -> None:
    ENTRIES.clear(), _hints_shown.clear()


def finished() -> dict[str, Callable]:
    """The functions whose last check in this session said right, by name: `with using(**finished()): ...`."""
    return {name: entry.function for name, entry in ENTRIES.items() if entry.verdict.right}


class Progress:
    """A table of exercises; made by `progress`."""

    def __init__(self, rows: list[tuple[str, ...]], summary: str):
        self.rows, self.summary = rows, summary

    def __repr__(self) -> str:
        widths = [max(len(row[i]) for row in self.rows) for i in range(len(self.rows[0]))]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in self.rows]
        return "\n".join([*(line.rstrip() for line in table), "", self.summary])

    def _repr_html_(self) -> str:
        style = 'style="text-align:left;padding:0.2em 0.8em"'
        head, *rows = [
            "".join(f"<{tag} {style}>{html.escape(cell)}</{tag}>" for cell in row) for row, tag in self._tagged()
        ]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        table = f'<table style="color:inherit"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        return f"{table}<p>{html.escape(self.summary)}</p>"

    def _tagged(self) -> list[tuple[tuple[str, ...], str]]:
        return [(row, "th" if number == 0 else "td") for number, row in enumerate(self.rows)]


class Hints:
    """The hints that have been asked for; made by `hint`."""

    def __init__(self, exercise: Exercise, shown: int):
        self.exercise, self.shown = exercise, shown

    @property
    def rest(self) -> str:
        left = len(self.exercise.hints) - self.shown
        return (
            f"Ask again for the next one; there {'is 1' if left == 1 else f'are {left}'} more."
            if left
            else "That was the last."
        )

    def __repr__(self) -> str:
        given = enumerate(self.exercise.hints[: self.shown], 1)
        return "\n".join([*(f"{self._title(number)}: {text}" for number, text in given), self.rest])

    def _repr_html_(self) -> str:
        folds = [
            f"<details{' open' if number == self.shown else ''}><summary>{self._title(number)}</summary>"
            f'<div style="padding:0.2em 1.2em">{prose(text)}</div></details>'
            for number, text in enumerate(self.exercise.hints[: self.shown], 1)
        ]
        return f'<div style="color:inherit;max-width:60em">{"".join(folds)}<p>{html.escape(self.rest)}</p></div>'

    def _title(self, number: int) -> str:
        return f"Hint {number} of {len(self.exercise.hints)}"


def hint(name_or_function: str | Callable) -> Hints:
    """The first hint to an exercise; called again, also the next one."""
    exercise = find_exercise(name_or_function)
    shown = _hints_shown[exercise.name] = min(_hints_shown.get(exercise.name, 0) + 1, len(exercise.hints))
    return Hints(exercise, shown)


def progress(notebook: str | None = None) -> Progress:
    """The exercises of a notebook ("04"), with points, status and attempts; None means those of what was checked."""
    notebooks = {notebook} if notebook else {entry.exercise.notebook for entry in ENTRIES.values()}
    entries = ENTRIES
    exercises = [e for e in registry.EXERCISES.values() if e.notebook in notebooks] if notebooks else []
    exercises += [entry.exercise for name, entry in entries.items() if name not in {e.name for e in exercises}]
    if not exercises:
        return Progress([("exercise", "points", "status", "attempts")], "Nothing has been checked yet.")
    points = sum(e.points for e in exercises)
    reached = sum(e.points for e in exercises if e.name in entries and entries[e.name].verdict.right)
    rows = [("exercise", "points", "status", "attempts"), *map(_row, exercises)]
    return Progress(rows, f"{reached} of {points} points.")


def _row(exercise: Exercise) -> tuple[str, ...]:
    entry = ENTRIES.get(exercise.name)
    status = entry.verdict.status if entry else "not started"
    again = " (was right before)" if entry and entry.solved and not entry.verdict.right else ""
    return (
        exercise.name,
        str(exercise.points),
        f"{SIGNS[status]} {TITLES[status]}{again}",
        str(entry.attempts if entry else 0),
    )
