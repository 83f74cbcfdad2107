"""Proof of every exercise: its check accepts right answers, and rejects wrong ones with the name of the mistake."""

import ast
import inspect
import re
from dataclasses import replace

import pytest

from grpo_lab.base.language import _
from grpo_lab.course.checking import judge
from grpo_lab.course.checking.difference import first_difference
from grpo_lab.course.checking.mistakes import wrong_outcome
from grpo_lab.course.checking.outcome import equal_outcomes
from grpo_lab.course.checking.run_cases import Attempt, expected_outcomes
from grpo_lab.course.exercise import TESTED_PROPERTIES, function_from_source, source_of
from grpo_lab.course.exercises import all_exercises, find_exercise, texts_of
from grpo_lab.course.stub import given_checks
from grpo_lab.formulas.lines import span_at
from tests.course.proof import trials
from tests.course.proof.trials import faults_of_form, tree_of
from tests.mutants.mutant import errata_mutants

SEEN, FRESH = trials.SEEDS
# Exercises on masks, texts and gradients that are always tried. The others are slow: together they take a minute.
QUICK = ("completion_mask", "format_fault", "kl_in_reward")
QUICK_FIRST = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in all_exercises()]
# Exercises whose cases train a policy. They take two thirds of the time of all exercises.
TRAINING = ("train_by_grpo", "learn_by_grpo", "learn_by_playing")
TRAINING_LAST = [pytest.param(name, marks=pytest.mark.slow) if name in TRAINING else name for name in all_exercises()]


@pytest.mark.parametrize("name", QUICK_FIRST)
def test_exercise_accepts_the_reference_and_names_each_known_mistake(name):
    """This holds on the inputs that students see and on hidden ones."""
    exercise = find_exercise(name)
    answers, faults = trials.right_answers(exercise), faults_of_form(exercise)
    assert len(answers) >= 2, "the reference, and one that is written differently"
    gaps = [trials.accepts(exercise, answer, seed) for seed in trials.SEEDS for answer in answers]
    wrong = exercise.mistakes
    gaps += [trials.rejects(exercise, mistake, seed) for seed in trials.SEEDS for mistake in wrong]
    gaps += [trials.rejects_form(exercise, answer, fault) for fault, answer in faults.items()]
    assert [gap for of_answer in gaps for gap in of_answer] + trials.kills_mutants(exercise, SEEN) == []


@pytest.mark.parametrize("name", QUICK_FIRST)
def test_verdicts_are_fully_translated_into_chinese(name, monkeypatch):
    """No sentence on any mistake or fault of form stays English, whatever values it contains."""
    exercise = find_exercise(name)
    verdicts = [
        judge(exercise, trials.outcomes(exercise, answer, SEEN)) for answer in faults_of_form(exercise).values()
    ]
    for mistake in exercise.mistakes:
        wrong = [wrong_outcome(exercise, mistake, index, SEEN) for index in range(len(exercise.cases))]
        verdicts.append(judge(exercise, wrong, SEEN))
    monkeypatch.setenv("GRPO_LAB_LANG", "zh_CN")
    for part in (
        part for verdict in verdicts for part in (*verdict.parts, *verdict.folded_parts) if part.kind == "sentences"
    ):
        chinese = _(part.text)
        prose = re.sub(r"`[^`]*`|\([^)]*\)|\[[^\]]*\]", "", chinese)
        assert re.search("[\u4e00-\u9fff]", prose), chinese
        assert not re.search(r"([A-Za-z]{2,}[ ,]+){3}[A-Za-z]{2}", prose), chinese


def test_a_value_that_contains_words_of_a_message_does_not_break_its_translation(monkeypatch):
    exercise = find_exercise("importance_ratio")
    subject = next(name for outcome in expected_outcomes(exercise, SEEN) for name in outcome.results if " is " in name)
    expected = expected_outcomes(exercise, SEEN)[0]
    got = replace(expected, results=expected.results | {subject: None})
    text = first_difference(Attempt(exercise, [got], SEEN), 0).finding
    assert text.startswith(f"The {subject[4:]} is None; a")
    monkeypatch.setenv("GRPO_LAB_LANG", "zh_CN")
    assert _(text).startswith(f"{_(subject)}的类型不对：现在是“None”，应为“")


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINING_LAST)
def test_the_reference_without_its_argument_checks_gets_all_points(name):
    """A student writes only the lines of the reference below its argument checks."""
    exercise = find_exercise(name)
    function = inspect.unwrap(exercise.function)
    tree = tree_of(function)
    tree.body, tree.decorator_list = tree.body[len(given_checks(tree)) :], []
    verdict = judge(exercise, trials.outcomes(exercise, function_from_source(function, ast.unparse(tree)), SEEN))
    assert verdict.right, verdict.details
    assert verdict.points == exercise.points, verdict.details


@pytest.mark.parametrize("name", TRAINING_LAST)
def test_hidden_inputs_differ_from_the_visible_ones(name):
    visible, fresh = (expected_outcomes(find_exercise(name), seed) for seed in trials.SEEDS)
    assert not [outcome.error for outcome in (*visible, *fresh) if outcome.error], "no case asks for an error"
    inputs_differ = any(repr(case.build(SEEN)) != repr(case.build(FRESH)) for case in find_exercise(name).cases)
    assert inputs_differ or any(
        not equal_outcomes(a, b, find_exercise(name)) for a, b in zip(visible, fresh, strict=True)
    )


def test_an_exercise_has_all_its_parts_in_order():
    for name, exercise in all_exercises().items():
        kinds = [TESTED_PROPERTIES.index(case.tested_property) for case in exercise.cases]
        assert kinds == sorted(kinds), name
        assert kinds[0] == 0, name
        assert len(exercise.hints) >= 2, name
        assert len(exercise.mistakes) >= 3, name
        assert texts_of(exercise.notebook)[name]["explanations"].keys() == {m.name for m in exercise.mistakes}, name
        assert set(exercise.gradient_of) <= set(inspect.signature(exercise.function).parameters), name


@pytest.mark.parametrize("name", TRAINING_LAST)
def test_every_mistake_fits_its_reference_and_the_first_is_named_in_a_few_lines(name):
    """That all are named is in `test_exercise_accepts_the_reference_and_names_each_known_mistake`."""
    exercise = find_exercise(name)
    first, *_ = mistakes = exercise.mistakes
    assert trials.rejects(exercise, first, SEEN) == []
    for mistake in mistakes:
        assert "expected one" not in wrong_outcome(exercise, mistake, 0, SEEN).message


def test_a_local_variable_of_the_reference_may_be_renamed():
    """The addresses of mistakes find the same lines after all local variables were renamed."""
    for exercise in all_exercises().values():
        source = source_of(inspect.unwrap(exercise.function))
        renamed = with_new_locals(source)
        for address in {address for mistake in exercise.mistakes for address in mistake.lines}:
            assert span_at(source, address) == span_at(renamed, address), f"{exercise.name}: {address}"


def with_new_locals(source: str) -> str:
    names = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
    stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    rows = source.splitlines()
    for node in sorted(names, key=lambda node: -node.col_offset):
        if node.id in stored:
            row = rows[node.lineno - 1].encode()
            rows[node.lineno - 1] = (row[: node.col_offset] + b"new_" + row[node.col_offset :]).decode()
    return "\n".join(rows)


# Errata without an exercise: how numbers are spelt (notebook 06), a fault that notebook 09 plants, how rows are packed,
# and the mode of a model.
WITHOUT_EXERCISE = {"string-equality", "answers-mixed", "always-fast", "uncounted", "padding-shown", "dropout-on"}


def test_every_known_erratum_is_a_mistake_of_some_exercise():
    known = {mistake.name for exercise in all_exercises().values() for mistake in exercise.mistakes}
    assert {mutant.name.split(":")[0] for mutant in errata_mutants()} - known == WITHOUT_EXERCISE
