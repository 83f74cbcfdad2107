"""Run a student's function on every case of an exercise, guarded; the result is data for `judge`."""

from collections.abc import Callable
from dataclasses import replace

from grpo_lab.course.checking import card
from grpo_lab.course.checking.outcome import Outcome, outcome_of
from grpo_lab.course.checking.signature import signature_fault
from grpo_lab.course.checking.withheld import Withheld
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.guard import guarded, snapshot

SECONDS = 3.0  # for one case


def run_student(function: Callable, exercise: Exercise, seed: int = 0, seconds: float = SECONDS) -> list[Outcome]:
    """One outcome a case, in order. After a fault that the guard had to stop, the list ends with it.

    Args:
        function: any callable; a wrong signature is a fault, too.
        exercise: what to try it on.
        seed: of the inputs.
        seconds: allowed for each case.
    """
    if message := signature_fault(function, exercise):
        return [Outcome(fault="signature", message=message)]
    undo, outcomes = snapshot(exercise, *exercise.cases, *exercise.misconceptions), []
    library = Withheld(exercise)
    for index in range(len(exercise.cases)):
        outcomes.append(_run_case(function, exercise, index, seed, seconds, undo, library))
        if outcomes[-1].fault or outcomes[-1].patched:
            break
    return outcomes


def _run_case(
    function: Callable, exercise: Exercise, index: int, seed: int, seconds: float, undo: Callable, library: Withheld
) -> Outcome:
    patched = []

    def after(undo=undo, add=patched.extend, give_back=library.give_back) -> None:
        give_back()
        add(undo())

    try:
        ran = guarded(lambda: outcome_of(function, exercise, index, seed, after, library.take), seconds)
    finally:
        library.give_back()
    if ran.result is None:  # it was stopped before it came to that
        after()
    outcome = ran.result or Outcome(fault=ran.fault or "exit")
    if patched:
        return replace(outcome, patched=tuple(dict.fromkeys(patched)), printed=ran.printed)
    if not (outcome.error or outcome.fault):
        tried = guarded(lambda: card.trial(function, exercise, index, seed), seconds)
        undo()
        found = card.Trial(f"unknown: {tried.fault}") if tried.fault else tried.result
        outcome = found.told(outcome)
    return replace(outcome, printed=ran.printed)


card.warm_up()
