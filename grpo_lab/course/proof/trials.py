"""Does the check do what it promises? Every right answer is accepted; every wrong one is rejected, and named.

Right answers are those of tests/course/right where this runs in a checkout, and the reference everywhere. Wrong ones
are the misconceptions of each exercise; mutants that a machine makes of its reference; and faults of form: the wrong
shape, a detached gradient, a loop without end and so on.
"""

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from grpo_lab.checks import check_choice
from grpo_lab.course.checking import Outcome, card, expectations, judge, outcome_of
from grpo_lab.course.checking.run_case import run_student
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.exercises import EXERCISES
from grpo_lab.course.proof import equivalent
from grpo_lab.course.proof.faults_of_form import STOPPED, faults_of_form
from grpo_lab.course.proof.mutants import mutants, survives

SEEDS = (0, 20_011)  # what students see, and one that they do not
RIGHT = Path(__file__).parents[3] / "tests" / "course" / "right"


@dataclass
class Proof:
    """What was tried on one exercise, and what came out otherwise than it should (`gaps`, in words)."""

    exercise: Exercise
    right: int = 0
    wrong: int = 0
    machine: int = 0
    explained: int = 0
    form: int = 0
    gaps: list[str] = field(default_factory=list)


def prove(notebooks: Iterable[str] = ()) -> list[Proof]:
    """A proof for each exercise of these notebooks; of all, if none is named."""
    wanted = tuple(notebooks)
    known = sorted({exercise.notebook for exercise in EXERCISES.values()})
    for notebook in wanted:
        check_choice("notebook", notebook, known)
    return [prove_exercise(e) for e in EXERCISES.values() if not wanted or e.notebook in wanted]


def prove_exercise(exercise: Exercise, seeds: tuple[int, ...] = SEEDS) -> Proof:
    """Try every right answer and every mistake with each seed, every fault of form once."""
    proof = Proof(exercise)
    for answer in right_answers(exercise):
        proof.right += 1
        proof.gaps += accepts(exercise, answer, seeds)
    for mistake in exercise.misconceptions:
        proof.wrong += 1
        proof.gaps += rejects(exercise, mistake.name, {mistake.name, mistake.pair} - {""}, seeds)
    machine(proof, seeds[0])
    for fault, answer in faults_of_form(exercise).items():
        proof.form += 1
        proof.gaps += rejects_form(exercise, answer, fault)
    return proof


def machine(proof: Proof, seed: int) -> None:
    """Let mutants of the reference try their luck; those that `equivalent` explains are right answers in disguise."""
    exercise, expected = proof.exercise, expectations(proof.exercise, seed)[0]
    unused = set(equivalent.of(exercise))
    for mutant in mutants(exercise):
        proof.machine += 1
        if survives(exercise, mutant, expected, seed):
            entry = equivalent.entry(exercise, mutant)
            proof.explained += bool(entry)
            unused.discard(entry)
            proof.gaps += [] if entry else [f"machine-made mistake accepted: {mutant.name}"]
    proof.gaps += [f"machine-made mistake explained, but not accepted: {entry}" for entry in sorted(unused)]


def right_answers(exercise: Exercise) -> list[Callable]:
    """The reference, and the answers of a checkout's tests."""
    path = RIGHT / f"nb{exercise.notebook}.py"
    if not path.is_file():
        return [exercise.function]
    name = f"grpo_lab_right_answers_{exercise.notebook}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    answers, checks = sys.modules[name].RIGHT.get(exercise.name, ()), sys.modules[name].CHECKS.get(exercise.name)
    return [exercise.function, *(_checked(answer, checks) for answer in answers)]


def _checked(answer: Callable, checks: Callable | None) -> Callable:
    """The answer, after the checks of its arguments, which are the same lines however the rest is written."""
    if checks is None:
        return answer

    @functools.wraps(answer)
    def checked(*args, **kwargs):
        checks(*args, **kwargs)
        return answer(*args, **kwargs)

    return checked


def accepts(exercise: Exercise, answer: Callable, seeds: tuple[int, ...] = SEEDS) -> list[str]:
    """Gaps: where a right answer is not taken for right."""
    verdicts = {seed: judge(exercise, _tried(exercise, answer, seed), seed) for seed in seeds}
    return [
        f"right answer {answer.__name__} rejected with seed {seed}: {verdict.message.splitlines()[0]}"
        for seed, verdict in verdicts.items()
        if not verdict.right
    ]


def rejects(exercise: Exercise, name: str, names: set[str], seeds: tuple[int, ...] = SEEDS) -> list[str]:
    """Gaps: where a misconception is taken for right, or is not named as itself or its pair."""
    gaps = []
    for seed in seeds:
        verdict = judge(exercise, expectations(exercise, seed)[1][name], seed)
        if verdict.right:
            gaps.append(f"{name} accepted with seed {seed}")
        elif not names & set(verdict.misconceptions):
            said = ", ".join(verdict.misconceptions) or verdict.fault or "nothing"
            gaps.append(f"{name} rejected with seed {seed}, but named {said}")
    return gaps


def rejects_form(exercise: Exercise, answer: Callable, fault: str) -> list[str]:
    """Gaps: where a fault of form is accepted, or called neither by its name nor by a misconception's."""
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


def _tried(exercise: Exercise, answer: Callable, seed: int, on_card: bool = True) -> list[Outcome]:
    """As `run_student`, for answers that are known to come to an end: without its guard it is much faster."""
    outcomes = []
    for index in range(len(exercise.cases)):
        outcome = outcome_of(answer, exercise, index, seed)
        tried = on_card and not outcome.error
        outcomes.append(card.trial(answer, exercise, index, seed).told(outcome) if tried else outcome)
    return outcomes


KINDS = ("right answer", "machine-made mistake", "fault of form")  # how a gap begins; all others are known mistakes


def table(proofs: list[Proof]) -> str:
    """One line an exercise, the gaps below."""
    rows = [
        f"{'':32}{'right answers':>14} {'known mistakes':>15} {'made by machine':>26} {'faults of form':>15}\n"
        f"{'nb':2}  {'exercise':28}{'accepted':>14} {'named':>15} {'rejected (or no mistake)':>26} {'named':>15}"
    ]
    for proof in proofs:
        right, machine_made, form = (sum(gap.startswith(kind) for gap in proof.gaps) for kind in KINDS)
        known = len({gap.split()[0] for gap in proof.gaps if not gap.startswith(KINDS)})
        rejected = f"{proof.machine - proof.explained - machine_made} (+{proof.explained}) of {proof.machine}"
        rows.append(
            f"{proof.exercise.notebook:2}  {proof.exercise.name:28}{_of(proof.right, right):>14} "
            f"{_of(proof.wrong, known):>15} {rejected:>26} {_of(proof.form, form):>15}"
        )
    totals = [sum(getattr(p, field) for p in proofs) for field in ("right", "wrong", "machine", "explained", "form")]
    gaps = [f"{proof.exercise.name}: {gap}" for proof in proofs for gap in proof.gaps]
    rows.append(
        f"{len(proofs)} exercises, {totals[0]} right answers, {totals[1]} known mistakes, {totals[2]} made by machine "
        f"({totals[3]} of them no mistake), {totals[4]} faults of form, {len(gaps)} gaps"
    )
    return "\n".join([*rows, *gaps])


def _of(total: int, missed: int) -> str:
    return f"{total - missed} of {total}"
