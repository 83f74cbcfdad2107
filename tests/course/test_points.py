"""Points by property: values first, then gradients and extremes, each with its share."""

from dataclasses import replace

import pytest
import torch

from grpo_lab.course.checking import judge
from grpo_lab.course.checking.outcome import Outcome
from grpo_lab.course.exercise import Case
from grpo_lab.course.exercises import exercise
from tests.course.proof.trials import outcomes
from tests.course.toys import MEAN, scaled_mean


def _padded(seed):
    values = torch.tensor([[1.0, float("nan"), 2.0], [3.0, 1.0, 1.0]]).double()
    return (values, torch.tensor([[True, False, False], [True, True, True]])), {}


SMALL, DRAWN = MEAN.cases
PADDED = Case(_padded, "NaN in the padding", "stability")
MEANS = replace(MEAN, points=10, cases=(SMALL, DRAWN, PADDED))


def by_multiplying(values, mask, scale=1.0):
    return scale * (values * mask).sum(-1) / mask.sum(-1).clamp(min=1)


def without_gradient(values, mask, scale=1.0):
    return scaled_mean(values, mask, scale).detach() + 0 * torch.where(mask, values, 0).sum(-1)


def both(values, mask, scale=1.0):
    return by_multiplying(values, mask, scale).detach() + 0 * values.sum(-1)


def zeros(values, mask, scale=1.0):
    return 0 * torch.where(mask, values, 0).sum(-1)


@pytest.mark.parametrize(
    ("answer", "missing", "points", "status"),
    [
        (scaled_mean, set(), 10, "right"),
        (by_multiplying, {"stability"}, 8, "partly"),
        (without_gradient, {"gradients"}, 8, "partly"),
        (both, {"gradients", "stability"}, 6, "partly"),
        (zeros, {"values", "gradients", "stability"}, 0, "wrong"),
    ],
)
def test_each_property_has_its_share_and_values_come_first(answer, missing, points, status):
    verdict = judge(MEANS, outcomes(MEANS, answer))
    assert {name for name, holds in verdict.properties.items() if not holds} == missing
    assert (verdict.points, verdict.status) == (points, status)
    assert (f"partly right, {points} of 10 points" in repr(verdict)) == (0 < points < 10)


def test_a_run_that_was_stopped_on_an_extreme_input_keeps_the_points_for_values():
    verdict = judge(MEANS, [*outcomes(MEANS, scaled_mean)[:2], Outcome(fault="endless")])
    assert verdict.status == "form" and verdict.points == 8
    assert judge(MEANS, [outcomes(MEANS, scaled_mean)[0], Outcome(fault="endless")]).points == 0


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("token_logprobs", "overflowing-sum"), ("token_entropy", "log-of-zero"),
        ("sequence_logprob", "zero-times-infinity"), ("kl_exact", "log-of-zero"),
    ],
)  # fmt: skip
def test_the_formula_as_most_people_write_it_loses_only_the_points_for_extremes(name, mistake):
    one = exercise(name)
    answer = one.misconceptions[mistake].wrong
    assert judge(one, outcomes(one, answer)).properties == {"values": True, "gradients": True, "stability": False}
