"""Points from the shares of right cases: values come first, and a rule that is wrong earns at most half."""

import pytest

from grpo_lab.course.checking.points import earned_points


@pytest.mark.parametrize(
    ("shares", "points"),
    [
        ({"values": 1.0}, 10),
        ({"values": 1.0, "gradients": 0.8}, 5),
        ({"values": 0.2, "gradients": 1.0}, 0),
        ({"values": 0.5, "gradients": 1.0}, 2.5),
        ({"values": 0.9, "gradients": 1.0}, 4.5),
        ({}, 0),
    ],
)
def test_earned_points_of_one_attempt_depend_on_its_shares(shares, points):
    assert earned_points(10, shares) == points


def test_earned_points_of_several_attempts_are_those_of_the_smallest_shares():
    assert earned_points(10, {"values": 0.5}, {"values": 0.9}) == earned_points(10, {"values": 0.5})


def test_earned_points_are_zero_if_values_are_right_on_the_visible_inputs_alone():
    assert earned_points(10, {"values": 1.0}, {"values": 0.9}) == 0, "written down for the inputs that are seen"
