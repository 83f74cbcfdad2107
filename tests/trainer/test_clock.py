"""The clock of a step: seconds by phase, also of nested and repeated phases and of phases that fail."""

import pytest
import torch

from grpo_lab.trainer.clock import Clock


def test_an_inner_phase_is_not_counted_for_the_outer_one():
    readings = iter([0.0, 1.0, 3.0, 10.0, 20.0, 24.0])
    clock = Clock(torch.device("cpu"), read=lambda: next(readings))
    with clock("outer"), clock("inner"):
        pass
    assert clock.totals == {"inner": 2.0, "outer": 8.0}
    with clock("inner"):
        pass
    assert clock.totals == {"inner": 6.0, "outer": 8.0}


def test_a_phase_that_fails_is_counted():
    readings = iter([0.0, 5.0])
    clock = Clock(torch.device("cpu"), read=lambda: next(readings))
    with pytest.raises(ZeroDivisionError), clock("phase"):
        raise ZeroDivisionError
    assert clock.totals == {"phase": 5.0}
