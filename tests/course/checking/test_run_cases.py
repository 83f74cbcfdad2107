"""The outcome of a call repeats, and leaves the session's random numbers alone."""

import torch

from grpo_lab.course.checking.compare import equal_outcomes
from grpo_lab.course.checking.run_cases import outcome_of
from tests.course.small_exercise import MEAN


def test_cases_draw_the_same_random_numbers_and_restore_the_random_state_of_the_session():
    def noisy(values, mask, scale=1.0):
        return values.sum(-1) + torch.rand(len(values), dtype=values.dtype)

    torch.manual_seed(5)
    first, torch_next = outcome_of(noisy, MEAN, 0), torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch_next, torch.rand(1))
    assert equal_outcomes(first, outcome_of(noisy, MEAN, 0), MEAN)
