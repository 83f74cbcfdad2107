"""Run a student's function on every case of an exercise, guarded; the result is data for `judge`."""

from collections.abc import Callable
from dataclasses import replace

from grpo_lab.course.checking.outcome import Outcome, outcome_of
from grpo_lab.course.checking.signature import signature_fault
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.guard import guarded

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
    outcomes: list[Outcome] = []
    for index in range(len(exercise.cases)):
        ran = guarded(lambda index=index: outcome_of(function, exercise, index, seed), seconds)
        outcomes.append(replace(ran.result or Outcome(fault=ran.fault or "exit"), printed=ran.printed))
        if outcomes[-1].fault:
            break
    return outcomes
