"""The promise of the check, exercise by exercise: right answers accepted, wrong ones rejected and called by name."""

import pytest

from grpo_lab.course.__main__ import main
from grpo_lab.course.checking.compare import equal
from grpo_lab.course.checking.outcome import expected_outcomes
from grpo_lab.course.exercise import Exercise, Misconception
from grpo_lab.course.exercises import EXERCISES
from grpo_lab.course.proof import trials
from tests.mutants.errata import IDS

# One of sums over steps, one of texts, one of gradients: the rest needs a minute.
QUICK = ("return_to_go", "format_fault", "kl_in_reward")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in EXERCISES])
def test_right_accepted_wrong_rejected_and_named(name):
    proof = trials.prove_exercise(EXERCISES[name], seeds=trials.SEEDS[:1])
    assert proof.gaps == []
    assert proof.machine >= 6, "a reference with so few places to go wrong is no exercise"
    assert proof.right >= 4, "the reference and three right answers that are written differently"
    assert proof.wrong >= 3 and proof.form >= 6


@pytest.mark.slow
@pytest.mark.parametrize("name", EXERCISES)
def test_the_same_holds_on_hidden_inputs(name):
    exercise, fresh = EXERCISES[name], trials.SEEDS[1:]
    for answer in trials.right_answers(exercise):
        assert trials.accepts(exercise, answer, fresh) == []
    for mistake in exercise.misconceptions:
        assert trials.rejects(exercise, mistake.name, {mistake.name, mistake.pair} - {""}, fresh) == []


@pytest.mark.parametrize("name", EXERCISES)
def test_hidden_inputs_differ_from_the_visible_ones(name):
    cases = [case for case in EXERCISES[name].cases if not case.fixed]
    assert cases, "an answer written down for fixed inputs would pass"
    visible, fresh = (expected_outcomes(EXERCISES[name], seed) for seed in trials.SEEDS)
    inputs_differ = any(repr(case.build(0)) != repr(case.build(trials.SEEDS[1])) for case in cases)
    assert inputs_differ or any(not equal(a, b, EXERCISES[name]) for a, b in zip(visible, fresh, strict=True))


def test_there_are_enough_of_everything():
    assert len(EXERCISES) >= 20
    assert sum(len(exercise.misconceptions) for exercise in EXERCISES.values()) >= 60


# How a model is asked, not what is computed: no exercise has a student decode. Notebook 07b shows it.
WITHOUT_EXERCISE = ["cache-dropped"]


def test_every_mistake_in_circulation_is_recognised_somewhere():
    known = {mistake.name for exercise in EXERCISES.values() for mistake in exercise.misconceptions}
    assert [name for name in IDS if name not in known] == WITHOUT_EXERCISE


@pytest.mark.slow
def test_a_gap_is_found_and_told(monkeypatch, capsys):
    first = EXERCISES["return_to_go"]
    blind = Misconception("not-a-mistake", first.function, "It is right, and called wrong.")
    fields = {name: getattr(first, name) for name in first.__dataclass_fields__}
    broken = Exercise(**{**fields, "misconceptions": (*first.misconceptions, blind)})
    monkeypatch.setattr(trials, "EXERCISES", {first.name: broken})
    assert main(["prove"]) == 1
    assert f"{first.name}: not-a-mistake accepted with seed 0" in capsys.readouterr().out


def test_an_unknown_notebook_is_named(capsys):
    assert main(["prove", "77"]) == 2
    assert "notebook is '77'" in capsys.readouterr().err
