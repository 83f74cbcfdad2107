"""The first difference is described: errors by their line, shapes by the missing axis."""

import pytest

from grpo_lab.course import check
from tests.course.small_exercise import MEAN


def raising(error):
    def mine(values, mask, scale=1.0):
        raise error

    return mine


def spoilt(values, mask, scale=1.0):
    result = values.square().sum(-1)
    values.mul_(2)
    return result


@pytest.mark.parametrize(
    ("mine", "words"),
    [
        (raising(ValueError("no\n" * 50)), "It raises ValueError: no"),
        (raising(AssertionError("Torch not compiled with CUDA enabled")), "on the device of the arguments"),
        (spoilt, "the check could not use its result"),
    ],
)
def test_verdict_on_an_error_shows_its_line_and_no_expected_values(mine, words):
    verdict = check(mine, MEAN)
    assert words in verdict.message
    assert "    expected" not in repr(verdict)
    assert len(repr(verdict).splitlines()) <= 8


def test_verdict_on_a_missing_axis_suggests_that_it_was_summed_over():
    verdict = check(lambda rewards: (rewards - rewards.mean()).sum(0), "rloo_advantages")  # one group: (1, G)
    assert "a sum over one axis too many" in verdict.message
