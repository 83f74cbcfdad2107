"""Trials of the check of an exercise. Each function returns the gaps: sentences on answers that were judged wrongly.

Three kinds of wrong answers are tried: the known mistakes of the exercise, mutants of its reference, and answers with a
fault of form, such as a wrong shape or a detached gradient.
"""

import importlib
from collections.abc import Callable

from grpo_lab.course.checking import judge
from grpo_lab.course.checking.mistakes import wrong_outcome
from grpo_lab.course.checking.outcome import Outcome
from grpo_lab.course.checking.run_cases import expected_outcomes, outcome_of
from grpo_lab.course.exercise import Exercise, Mistake
from tests.course.proof import equivalent
from tests.course.proof.mutants import mutants, survives

SEEDS = (0, 20_011)  # the seed of the inputs that students see, and another one
MOST_LINES, MOST_COLUMNS = 8, 120  # the largest size of a verdict without its folded parts


def right_answers(exercise: Exercise) -> list[Callable]:
    """Return the reference, and right answers that are written differently."""
    others = importlib.import_module(f"tests.course.right_answers.nb{exercise.notebook}")
    return [exercise.function, *others.RIGHT.get(exercise.name, ())]


def accepts(exercise: Exercise, answer: Callable, seed: int) -> list[str]:
    """Return a sentence if a right answer is rejected."""
    verdict = judge(exercise, outcomes(exercise, answer, seed), seed)
    return [] if verdict.right else [f"right answer {answer.__name__} rejected: {verdict.message.splitlines()[0]}"]


def rejects(exercise: Exercise, mistake: Mistake, seed: int) -> list[str]:
    """Return a sentence if a known mistake is accepted, is not named, or has a verdict that is too long."""
    outcomes = [wrong_outcome(exercise, mistake, index, seed) for index in range(len(exercise.cases))]
    verdict = judge(exercise, outcomes, seed)
    if verdict.right:
        return [f"{mistake.name} accepted"]
    if exercise.planted == (mistake.name,):  # the answer is the stub, in which nothing was repaired
        return [] if verdict.status == "not started" else [f"{mistake.name}: {verdict.status}, as it was given"]
    if mistake.name not in verdict.misconceptions:
        return [f"{mistake.name} rejected, but named {', '.join(verdict.misconceptions) or verdict.fault or 'nothing'}"]
    lines = repr(verdict).splitlines()
    fits = len(lines) <= MOST_LINES and max(map(len, lines)) <= MOST_COLUMNS
    return [] if fits else [f"{mistake.name}: the verdict is too long: {verdict!r}"]


def rejects_form(exercise: Exercise, answer: Callable, fault: str) -> list[str]:
    """Return a sentence if a fault of form is accepted, or the verdict names neither it nor a known mistake."""
    verdict = judge(exercise, outcomes(exercise, answer, SEEDS[0]), SEEDS[0])
    if verdict.right:
        return [f"fault of form '{fault}' accepted"]
    if verdict.fault != fault and not verdict.misconceptions:
        return [f"fault of form '{fault}' rejected, but named {verdict.fault or verdict.status}"]
    return []


def kills_mutants(exercise: Exercise, seed: int) -> list[str]:
    """Return a sentence for each mutant that the check accepts, unless `equivalent` lists it as a right answer.

    An entry of `equivalent` that fits no accepted mutant is a gap, too.
    """
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
    """Return the outcomes of an answer on all cases, as `run_student` does, but without its slow guard."""
    return [outcome_of(answer, exercise, index, seed) for index in range(len(exercise.cases))]
