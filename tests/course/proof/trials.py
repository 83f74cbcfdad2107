"""Does the check do what it promises? Each function returns the gaps in one exercise, in words: where it does not.

Wrong answers are the misconceptions of an exercise; mutants that a machine makes of its reference; and faults of form:
the wrong shape, a detached gradient and so on.
"""

import importlib
from collections.abc import Callable

from grpo_lab.course.checking import judge
from grpo_lab.course.checking.mistakes import wrong_outcome
from grpo_lab.course.checking.outcome import Outcome, expected_outcomes, outcome_of
from grpo_lab.course.exercise import Exercise, Misconception
from tests.course.proof import equivalent
from tests.course.proof.mutants import mutants, survives

SEEDS = (0, 20_011)  # what students see, and one that they do not
MOST_LINES, MOST_COLUMNS = 8, 120  # of a verdict, before anything is unfolded


def right_answers(exercise: Exercise) -> list[Callable]:
    """The reference, and answers that are written differently."""
    others = importlib.import_module(f"tests.course.right.nb{exercise.notebook}")
    return [exercise.function, *others.RIGHT.get(exercise.name, ())]


def accepts(exercise: Exercise, answer: Callable, seed: int) -> list[str]:
    """Where a right answer is not taken for right."""
    verdict = judge(exercise, outcomes(exercise, answer, seed), seed)
    return [] if verdict.right else [f"right answer {answer.__name__} rejected: {verdict.message.splitlines()[0]}"]


def rejects(exercise: Exercise, mistake: Misconception, seed: int) -> list[str]:
    """Where a misconception is taken for right, is not named, or is told at length."""
    outcomes = [wrong_outcome(exercise, mistake, index, seed) for index in range(len(exercise.cases))]
    verdict = judge(exercise, outcomes, seed)
    if verdict.right:
        return [f"{mistake.name} accepted"]
    if exercise.planted == (mistake.name,):  # nothing was repaired yet
        return [] if verdict.status == "not started" else [f"{mistake.name}: {verdict.status}, as it was given"]
    if mistake.name not in verdict.misconceptions:
        return [f"{mistake.name} rejected, but named {', '.join(verdict.misconceptions) or verdict.fault or 'nothing'}"]
    lines = repr(verdict).splitlines()
    fits = len(lines) <= MOST_LINES and max(map(len, lines)) <= MOST_COLUMNS
    return [] if fits else [f"{mistake.name}: the verdict is too long: {verdict!r}"]


def rejects_form(exercise: Exercise, answer: Callable, fault: str) -> list[str]:
    """Where a fault of form is accepted, or called neither by its name nor by a misconception's."""
    verdict = judge(exercise, outcomes(exercise, answer, SEEDS[0]), SEEDS[0])
    if verdict.right:
        return [f"fault of form '{fault}' accepted"]
    if verdict.fault != fault and not verdict.misconceptions:
        return [f"fault of form '{fault}' rejected, but named {verdict.fault or verdict.status}"]
    return []


def kills_mutants(exercise: Exercise, seed: int) -> list[str]:
    """Mutants of the reference that no case tells from it; those that `equivalent` lists are right answers."""
    expected, unused = expected_outcomes(exercise, seed), set(equivalent.entries_of(exercise))
    num_mutants, gaps = 0, []
    for mutant in mutants(exercise):
        num_mutants += 1
        if survives(exercise, mutant, expected, seed):
            entry = equivalent.entry(exercise, mutant)
            unused.discard(entry)
            gaps += [] if entry else [f"mutant accepted: {mutant.name}"]
    assert num_mutants >= 6, "a reference with so few places to go wrong is no exercise"
    return gaps + [f"mutant listed as equivalent, but not accepted: {entry}" for entry in sorted(unused)]


def outcomes(exercise: Exercise, answer: Callable, seed: int = 0) -> list[Outcome]:
    """As `run_student`, for answers that are known to come to an end: without its guard it is much faster."""
    return [outcome_of(answer, exercise, index, seed) for index in range(len(exercise.cases))]
