"""The verdict on each kind of answer: its status, its points, and nothing that gives the reference away."""

import inspect
from dataclasses import replace

import pytest
import torch

from grpo_lab.course import check
from grpo_lab.course.checking import judge
from grpo_lab.course.checking.outcome import Outcome
from grpo_lab.course.checking.outcome_bytes import from_bytes, to_bytes
from grpo_lab.course.checking.run_cases import run_student
from grpo_lab.course.exercise import Case
from grpo_lab.course.exercises import find_exercise
from tests.course.proof.trials import outcomes
from tests.course.small_exercise import MEAN, not_masked, scaled_mean, stub


def _padded(seed):
    values = torch.tensor([[1.0, float("nan"), 2.0], [3.0, 1.0, 1.0]]).double()
    return (values, torch.tensor([[True, False, False], [True, True, True]])), {}


SMALL, DRAWN = MEAN.cases
PADDED = Case(_padded, "NaN in the padding", "stability")
MEANS = replace(MEAN, points=10, cases=(SMALL, DRAWN, PADDED))


def by_multiplying(values, mask, scale=1.0):
    return scale * (values * mask).sum(-1) / mask.sum(-1).clamp(min=1)


def zeros(values, mask, scale=1.0):
    return 0 * torch.where(mask, values, 0).sum(-1)


def without_gradient(values, mask, scale=1.0):
    return scaled_mean(values, mask, scale).detach() + zeros(values, mask)


def detached_product(values, mask, scale=1.0):
    return by_multiplying(values, mask, scale).detach() + 0 * values.sum(-1)


@pytest.mark.parametrize(
    ("answer", "missing", "points", "status"),
    [
        (scaled_mean, set(), 10, "right"),
        (by_multiplying, {"stability"}, 9, "partly"),
        (without_gradient, {"gradients"}, 5, "partly"),
        (detached_product, {"gradients", "stability"}, 5, "partly"),
        (zeros, {"values", "gradients", "stability"}, 0, "wrong"),
    ],
)
def test_each_property_has_its_weight_and_values_come_first(answer, missing, points, status):
    """A missing gradient costs more than a failure on extreme inputs."""
    verdict = judge(MEANS, outcomes(MEANS, answer))
    assert {name for name, share in verdict.shares.items() if share < 1} == missing
    assert (verdict.points, verdict.status) == (points, status)
    assert (f"partly right, {points} of 10 points" in repr(verdict)) == (0 < points < 10)


def test_a_run_that_was_stopped_on_an_extreme_input_keeps_the_points_for_values():
    verdict = judge(MEANS, [*outcomes(MEANS, scaled_mean)[:2], Outcome(fault="endless")])
    assert verdict.status == "form"
    assert verdict.points == 9


def test_a_rule_that_is_wrong_on_a_few_inputs_earns_up_to_half():
    task = find_exercise("group_advantages")

    def ddof_ignored(rewards, scale="group", ddof=1, eps=1e-4):
        return task.function(rewards, scale, 1, eps)

    verdict = judge(task, outcomes(task, ddof_ignored))
    assert verdict.status == "wrong"
    assert 0.2 * task.points < verdict.points < 0.5 * task.points
    assert f"not right yet, {verdict.points:g} of {task.points} points" in repr(verdict)
    assert judge(MEANS, [outcomes(MEANS, scaled_mean)[0], Outcome(fault="endless")]).points == 2.5


def test_one_wrong_result_of_four_costs_no_more_than_a_rule_that_is_wrong():
    task = find_exercise("read_sequences")

    def who_ended(*args):
        ids, mask, truncated, texts = task.function(*args)
        return ids, mask, ~truncated, texts

    assert 0 < judge(task, outcomes(task, who_ended)).points < 0.5 * task.points


@pytest.mark.parametrize(
    ("name", "mistake"),
    [("token_logprobs", "overflowing-sum"), ("sequence_logprob", "zero-times-infinity"), ("kl_exact", "log-of-zero")],
)
def test_the_formula_as_most_people_write_it_loses_only_the_points_for_extremes(name, mistake):
    task = find_exercise(name)
    answer = task.mistake(mistake).function
    assert judge(task, outcomes(task, answer)).shares.items() >= {"values": 1, "gradients": 1}.items()


def test_a_stub_is_not_started_and_an_unfinished_branch_is_wrong():
    assert check(stub, MEAN).status == "not started"

    def half(values, mask, scale=1.0):
        if scale != 1:
            raise NotImplementedError
        return scaled_mean(values, mask, scale)

    verdict = check(half, MEAN)
    assert verdict.status == "wrong"
    assert "not written yet" in verdict.message
    assert "scale = 2" in repr(verdict)


def test_outcomes_of_another_process_get_the_same_verdict():
    assert check(not_masked, MEAN) == judge(MEAN, from_bytes(to_bytes(run_student(not_masked, MEAN))))
    with pytest.raises(ValueError, match="outcomes has 1 entries; expected 2"):
        judge(MEAN, run_student(not_masked, MEAN)[:1])


def test_the_library_s_own_function_is_no_answer_whatever_the_way_to_it():
    import grpo_lab.policy_gradient as module

    ways = (
        "library(logp, mask)",
        "module.sequence_logprob(logp, mask)",
        "getattr(module, 'sequence_logprob')(logp, mask)",
    )
    notebook = {"library": module.sequence_logprob, "module": module}
    for way in ways:
        exec(f"def sequence_logprob(logp, mask):\n    return {way}", notebook)
        verdict = check(notebook["sequence_logprob"])
        assert verdict.fault == "library"
        assert "the library does not have it" in verdict.message
        assert not verdict.points
    assert check(module.sequence_logprob).fault == check(find_exercise("sequence_logprob").function).fault == "library"
    assert module.sequence_logprob(torch.zeros(1, 2), torch.ones(1, 2).bool()) == 0, "it is back afterwards"


def reference_lines(function) -> set[str]:
    """Return the lines of the reference that are long enough to be recognised as its own."""
    code = inspect.getsource(inspect.unwrap(function)).split('"""')[-1]
    return {line.split("  #")[0].strip() for line in code.splitlines() if len(line.split("  #")[0].strip()) > 25}


@pytest.mark.parametrize(
    "task", [MEAN, find_exercise("format_fault"), find_exercise("rloo_advantages")], ids=lambda e: e.name
)
def test_no_verdict_contains_source_of_the_reference(task):
    answers = [lambda: None, *(m.function for m in task.mistakes)]
    verdicts = [check(answer, task) for answer in answers]
    text = "\n".join(verdict.details + verdict._repr_html_() for verdict in verdicts)
    assert not [line for line in reference_lines(task.function) if line in text]
    assert "secret_" not in text
