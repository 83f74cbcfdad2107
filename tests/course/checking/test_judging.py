"""The points of each property, where values come first, and the names of mistakes that come together in one answer."""

from dataclasses import replace

import pytest
import torch

from grpo_lab.course.checking import earned_points, judge
from grpo_lab.course.checking.mistakes import likely_mistakes, matching_mistakes
from grpo_lab.course.checking.outcome import Outcome, expected_outcomes
from grpo_lab.course.exercise import Case
from grpo_lab.course.exercises import find_exercise
from tests.course.proof.trials import outcomes
from tests.course.toys import MEAN, as_sum, not_masked, scaled_mean


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
    assert verdict.status == "form" and verdict.points == 9


def test_a_rule_that_is_wrong_on_a_few_inputs_earns_up_to_half():
    task = find_exercise("group_advantages")

    def ddof_ignored(rewards, scale="group", ddof=1, eps=1e-4):
        return task.function(rewards, scale, 1, eps)

    verdict = judge(task, outcomes(task, ddof_ignored))
    assert verdict.status == "wrong" and 0.2 * task.points < verdict.points < 0.5 * task.points
    assert f"not right yet, {verdict.points:g} of {task.points} points" in repr(verdict)
    visible, fresh = (replace(verdict, shares={"values": share}) for share in (1.0, 0.9))
    assert earned_points(visible, fresh) == 0, "written down for the inputs that are seen"
    assert earned_points(visible) == task.points and earned_points(verdict, fresh) == earned_points(verdict)
    earned = [earned_points(replace(verdict, shares={"values": share, "gradients": 1.0})) for share in (0.2, 0.5, 0.9)]
    assert earned == [0, task.points / 4, round(0.45 * task.points, 1)]
    assert earned_points(replace(verdict, shares={"values": 1.0, "gradients": 0.8})) == task.points / 2
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
    answer = task.known_mistakes[mistake].wrong
    assert judge(task, outcomes(task, answer)).shares.items() >= {"values": 1, "gradients": 1}.items()


def cold_entropy(logits, temperature=1.0):
    p = torch.softmax(logits, -1)  # two mistakes: no temperature, and below a logarithm of zero
    return -(p * torch.log(p)).sum(-1)


def attached_estimate(logp, ref_logp, estimator="k3"):
    d = ref_logp - logp  # all values are right, but two gradients are wrong
    return {"k1": -d, "k2": d**2 / 2, "k3": d.exp() - 1 - d, "k3+": d.exp() - 1 - d}[estimator]


def policy_detached(seq_logp, weights):
    return -(seq_logp.detach() * weights).mean()  # the verdict says that no gradient arrives, and names no mistake


def nonsense(logp, mask):
    return logp.sum(-1) * 0 + 17


TOGETHER = [
    ("token_entropy", cold_entropy, {"temperature-mismatch", "log-of-zero"}),
    ("kl_estimate", attached_estimate, {"reference-not-detached", "k3-plus-is-k3"}),
    ("reinforce_loss", policy_detached, set()),
    ("sequence_logprob", nonsense, set()),
]


@pytest.mark.parametrize(("name", "function", "expected"), TOGETHER)
def test_mistakes_that_come_together_are_named(name, function, expected):
    task = find_exercise(name)
    wrong = outcomes(task, function)
    assert (
        not matching_mistakes(task, wrong, 0)
        and {mistake.name for mistake in likely_mistakes(task, wrong, 0)} == expected
    )


def test_a_mistake_matches_where_it_differs_and_only_if_the_rest_is_right():
    def named(own_outcomes):
        return [mistake.name for mistake in matching_mistakes(MEAN, own_outcomes, 0)]

    expected = expected_outcomes(MEAN)
    assert named(expected) == []
    mixed = [outcomes(MEAN, not_masked)[0], outcomes(MEAN, as_sum)[1]]  # a different mistake on each case
    assert named(mixed) == []
    assert named([replace(o, gradients={"values": None}) for o in expected]) == []
