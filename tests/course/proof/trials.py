"""Does the check do what it promises? Each function returns the gaps in one exercise, in words: where it does not.

Wrong answers are the misconceptions of an exercise; mutants that a machine makes of its reference; and faults of form:
the wrong shape, a detached gradient, a loop without end and so on.
"""

import importlib
from collections.abc import Callable

from grpo_lab.course.checking import Outcome, card, expectations, judge, outcome_of
from grpo_lab.course.checking.run_case import run_student
from grpo_lab.course.exercise import Exercise
from tests.course.proof import equivalent
from tests.course.proof.faults_of_form import STOPPED
from tests.course.proof.mutants import mutants, survives

SEEDS = (0, 20_011)  # what students see, and one that they do not


def right_answers(exercise: Exercise) -> list[Callable]:
    """The reference, and answers that are written differently."""
    others = importlib.import_module(f"tests.course.right.nb{exercise.notebook}")
    return [exercise.function, *others.RIGHT.get(exercise.name, ())]


def accepts(exercise: Exercise, answer: Callable, seed: int) -> list[str]:
    """Where a right answer is not taken for right."""
    verdict = judge(exercise, _tried(exercise, answer, seed), seed)
    return [] if verdict.right else [f"right answer {answer.__name__} rejected: {verdict.message.splitlines()[0]}"]


def rejects(exercise: Exercise, name: str, names: set[str], seed: int) -> list[str]:
    """Where a misconception is taken for right, or is not named as itself or its pair."""
    verdict = judge(exercise, expectations(exercise, seed)[1][name], seed)
    if verdict.right:
        return [f"{name} accepted"]
    if names & set(verdict.misconceptions):
        return []
    return [f"{name} rejected, but named {', '.join(verdict.misconceptions) or verdict.fault or 'nothing'}"]


def rejects_form(exercise: Exercise, answer: Callable, fault: str) -> list[str]:
    """Where a fault of form is accepted, or called neither by its name nor by a misconception's."""
    if fault in STOPPED:
        outcomes = run_student(answer, exercise, SEEDS[0], 0.1 if fault == "endless" else 60.0)
    else:
        outcomes = _tried(exercise, answer, SEEDS[0], on_card=fault == "device")
    verdict = judge(exercise, outcomes, SEEDS[0])
    if verdict.right:
        return [f"fault of form '{fault}' accepted"]
    if verdict.fault != fault and not verdict.misconceptions:
        return [f"fault of form '{fault}' rejected, but named {verdict.fault or verdict.status}"]
    return []


def kills_mutants(exercise: Exercise, seed: int) -> list[str]:
    """Mutants of the reference that no case tells from it; those that `equivalent` lists are right answers."""
    expected, unused = expectations(exercise, seed)[0], set(equivalent.of(exercise))
    made, gaps = 0, []
    for mutant in mutants(exercise):
        made += 1
        if survives(exercise, mutant, expected, seed):
            entry = equivalent.entry(exercise, mutant)
            unused.discard(entry)
            gaps += [] if entry else [f"mutant accepted: {mutant.name}"]
    assert made >= 6, "a reference with so few places to go wrong is no exercise"
    return gaps + [f"mutant listed as equivalent, but not accepted: {entry}" for entry in sorted(unused)]


def _tried(exercise: Exercise, answer: Callable, seed: int, on_card: bool = True) -> list[Outcome]:
    """As `run_student`, for answers that are known to come to an end: without its guard it is much faster."""
    outcomes = []
    for index in range(len(exercise.cases)):
        outcome = outcome_of(answer, exercise, index, seed)
        tried = on_card and not outcome.error
        outcomes.append(card.trial(answer, exercise, index, seed).told(outcome) if tried else outcome)
    return outcomes
