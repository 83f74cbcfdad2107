"""When plain data and gradients are equal."""

import math

import pytest
import torch

from grpo_lab.course.checking.compare import equal_data, same_gradient
from grpo_lab.course.checking.plain_data import as_plain_data


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (torch.ones(2), torch.ones(2).double(), False),
        (torch.ones(2), torch.ones(1, 2), False),
        (1, 1.0, True),
        (1, True, False),
        (torch.tensor([math.nan, 1]), torch.tensor([math.nan, 1]), True),
        (math.nan, math.nan, True),
        (torch.tensor([math.inf]), torch.tensor([-math.inf]), False),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), False),
        ([1, "a"], [1, "b"], False),
        ({"a": 1}, {"b": 1}, False),
        ([1], [1, 2], False),
        (10**400, 10**400, True),
        # The tolerance is relative to the largest number.
        (numbers(1.0, 1e-8), numbers(1.0, 2e-8), True),  # a difference of 1e-8 is rounding beside a 1
        (numbers(1e-8), numbers(2e-8), False),  # the same difference is an error if there is no larger number
        (1e-8, 1e-8 * (1 + 1e-7), True),
        (numbers(1e-14), numbers(0.0), True),  # a difference of two nearly equal numbers leaves about this much
        (numbers(1.0), numbers(1.0 + 1e-5), False),
        (1e9, 1e9 + 1, True),
        (numbers(math.inf, 1e-8), numbers(math.inf, 2e-8), False),
    ],
)
def test_equal_data_compares_structure_dtypes_and_numbers(a, b, expected):
    assert equal_data(as_plain_data(a), as_plain_data(b), 1e-6) is expected


def test_a_missing_gradient_equals_a_gradient_of_zero():
    zero, ones = torch.zeros(2).double(), torch.ones(2).double()
    assert same_gradient(None, zero, 1e-6)
    assert same_gradient(zero, None, 1e-6)
    assert same_gradient(None, None, 1e-6)
    assert not same_gradient(None, ones, 1e-6)
    assert not same_gradient(ones, None, 1e-6)
