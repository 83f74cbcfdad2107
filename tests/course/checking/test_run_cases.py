"""A check runs a function on its cases and returns, whatever it does: the fault is named, and the state restored."""

import itertools
import sys

import pytest
import torch

from grpo_lab.course import check
from grpo_lab.course.checking.outcome import Outcome, equal_outcomes
from grpo_lab.course.checking.run_cases import MAX_SHOWN_LENGTH, Attempt, guarded, outcome_of, run_student
from tests.course.small_exercise import MEAN, scaled_mean


def test_cases_draw_the_same_random_numbers_and_restore_the_random_state_of_the_session():
    def noisy(values, mask, scale=1.0):
        return values.sum(-1) + torch.rand(len(values), dtype=values.dtype)

    torch.manual_seed(5)
    first, torch_next = outcome_of(noisy, MEAN, 0), torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch_next, torch.rand(1))
    assert equal_outcomes(first, outcome_of(noisy, MEAN, 0), MEAN)


def endless_and_stubborn(values, mask, scale=1.0):
    tries = 0
    while tries < 10**12:
        try:
            tries += 1
        except:  # noqa: E722
            continue


FAULTS = [
    (endless_and_stubborn, "endless"),
    (lambda values, mask, scale=1.0: [print("all work and no play") for _ in itertools.count()], "endless"),
    (lambda values, mask, scale=1.0: sys.exit(0), "exit"),
]


@pytest.mark.parametrize(("function", "fault"), FAULTS)
def test_guard_stops_and_names_each_fault_without_an_effect_on_the_next_check(function, fault):
    """The limit is on CPU time, so that a busy machine stops no call early."""
    out, err = sys.stdout, sys.stderr
    outcomes = run_student(function, MEAN, case_seconds=0.2 if fault == "endless" else 60.0)
    assert [o.fault for o in outcomes] == [fault]
    assert Attempt(MEAN, outcomes, 0).failing_cases == [0], "the cases after the one that was stopped have no outcome"
    assert (sys.stdout, sys.stderr) == (out, err)
    assert check(scaled_mean, MEAN).right


def test_guarded_keeps_printed_text_up_to_a_length():
    outcome = guarded(lambda: print("x" * (MAX_SHOWN_LENGTH + 50)) or Outcome({"the result": 7}), 60.0)
    assert outcome.results == {"the result": 7}
    assert outcome.printed == "x" * MAX_SHOWN_LENGTH + "\n… and 51 more characters"


def test_an_interrupt_of_the_notebook_passes_and_nothing_stays_replaced():
    def interrupted():
        raise KeyboardInterrupt

    out = sys.stdout
    with pytest.raises(KeyboardInterrupt):
        guarded(interrupted, 60.0)
    assert sys.stdout is out


def test_an_exception_shows_the_lines_of_the_student_and_no_others():
    def helper(values):
        return torch.cat([values, 3])

    def mine(values, mask, scale=1.0):
        return helper(values)

    outcome = run_student(mine, MEAN)[0]
    assert outcome.error == "TypeError"
    assert [line.partition(": ")[2] for line in outcome.trace.splitlines()] == [
        "return helper(values)",
        "return torch.cat([values, 3])",
    ]

    def recursive(values, mask, scale=1.0):
        return recursive(values, mask, scale)

    assert run_student(recursive, MEAN)[0].error == "RecursionError"
