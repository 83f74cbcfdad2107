"""The first difference is described, and so is a relation between wrong and right numbers; none is invented."""

import pytest
import torch

from grpo_lab.course import check
from grpo_lab.course.checking.difference import relation_of_tensors
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


A = torch.tensor([[1.0, -2.0, 3.5], [4.0, 5.5, -6.0], [7.25, 8.0, 10.0]]).double()
MASK = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])


@pytest.mark.parametrize(
    ("got", "expected", "words"),
    [
        (torch.zeros_like(A), A, "Everything is zero"),
        (A * torch.tensor([1, 1, 1.5]), A, "6 of 9 entries are right"),
        (torch.where(MASK, A, torch.nan), A, "There is NaN where a number is expected"),
        (A, torch.where(MASK, A, torch.inf), "There is a number where infinity is expected"),
        (~MASK, MASK, "exchanged everywhere"),
        (-A / 3, A, "-1/3 times"),
        (A * torch.pi, A, "3.142 times"),
        (torch.tensor([1, 2, 4]), torch.tensor([1, 2, 3]), "2 of 3 entries"),
    ],
)
def test_relation_of_tensors_finds_each_kind_of_relation(got, expected, words):
    assert words in relation_of_tensors(got, expected, 1e-6)
    assert relation_of_tensors(A, A.square() + A.flip(0), 1e-6) == "", "none is invented"


def test_relation_of_equal_numbers_names_no_factor():
    expected, got = torch.ones(3, dtype=torch.float64), torch.full((3,), 1.0078125, dtype=torch.float64)
    assert relation_of_tensors(got, expected, 1e-6) == ""
    assert relation_of_tensors(-expected, expected, 1e-6) == "The sign is flipped."
    steps = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert relation_of_tensors(3 * steps, steps, 1e-6) == "It is off by a constant factor: 3 times what is expected."


def test_a_small_number_where_zero_is_expected_points_to_an_epsilon():
    def epsilon_in_the_log(logits, temperature=1.0):
        p = (logits / temperature).softmax(-1)
        return -(p * (p + 1e-9).log()).sum(-1)

    assert "exactly 0 is expected: look for an epsilon" in check(epsilon_in_the_log, "token_entropy").message


def test_a_function_that_raises_is_shown_what_is_expected_of_its_result():
    """The exercise observes "the result" beside others, and None is expected nowhere."""

    def first_step_movement(policy):
        raise ValueError

    details = check(first_step_movement).details
    assert "expected = 'a function'" in details
    assert "expected = None" not in details
