"""`progress` counts the points of what was checked, and `hint` shows hints one at a time."""

import re
from dataclasses import replace

import pytest
import torch

from grpo_lab.course import check, finished, hint, progress
from grpo_lab.course import exercises as registry
from grpo_lab.course.checking import session
from grpo_lab.course.exercise import Case
from tests.course.toys import MEAN, not_masked, stub, written_differently

ALONE = replace(MEAN, notebook="99")  # an exercise in a notebook without other exercises


@pytest.fixture(autouse=True)
def _a_new_session():
    session.LAST_CHECKS.clear()
    registry._loaded["scaled_mean"] = ALONE
    yield
    session.LAST_CHECKS.clear()
    session._hints_shown.clear()
    del registry._loaded["scaled_mean"]


def without_gradient(values, mask, scale=1.0):
    return written_differently(values, mask, scale).detach()


def test_points_are_those_that_check_says():
    assert "Nothing has been checked yet" in repr(progress())
    check(stub, ALONE)
    assert row("scaled_mean") == ["scaled_mean", "0 / 2", "○ not done yet"]
    check(not_masked, ALONE)
    assert row("scaled_mean") == ["scaled_mean", "0 / 2", "✗ not right yet"] and finished() == {}
    assert check(without_gradient, ALONE).points == 1
    assert row("scaled_mean")[1:3] == ["1 / 2", "◐ partly right"] and "1 of 2 points." in repr(progress())
    assert finished() == {}, "a loss without a gradient trains nothing"
    check(written_differently, ALONE)
    assert row("scaled_mean") == ["scaled_mean", "2 / 2", "✓ right"]
    assert finished() == {"scaled_mean": written_differently} and "2 of 2 points." in repr(progress())
    check(not_masked, ALONE)
    assert row("scaled_mean")[2:] == ["✗ not right yet"] and finished() == {}


def test_a_right_formula_is_finished_even_if_an_extreme_input_fails():
    extreme = Case(lambda seed: ((torch.tensor([[float("nan"), 1.0]]), torch.tensor([[False, True]])), {}), "NaN")
    exercise = replace(ALONE, cases=(*ALONE.cases, replace(extreme, tests="stability")))

    def mine(values, mask, scale=1.0):
        return scale * (values * mask).sum(-1) / mask.sum(-1).clamp(min=1)

    assert not check(mine, exercise).right and finished() == {"scaled_mean": mine}


def row(name: str) -> list[str]:
    line = next(line for line in repr(progress()).splitlines() if line.startswith(f"| {name} "))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_exercises_of_the_same_notebook_are_listed_before_they_are_tried():
    names = [e.name for e in registry.all_exercises().values() if e.notebook == "04"]
    assert re.findall(r"^\| (\w+) ", repr(progress("04")), re.MULTILINE) == ["exercise", *names]
    with pytest.raises(ValueError, match="notebook is '77'; expected one of '01', "):
        progress("77")
    check(not_masked, MEAN)  # an exercise of notebook 01
    rows = [line for line in repr(progress()).splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 3 and sum("scaled_mean" in line for line in rows) == 1
    assert all("○ not done yet |" in line for line in rows if "scaled_mean" not in line)


def test_hints_unfold_one_at_a_time():
    first, second, third = hint("scaled_mean"), hint("scaled_mean"), hint("scaled_mean")
    assert MEAN.hints[0] in repr(first) and MEAN.hints[1] not in repr(first) + first.rich
    assert "1 more" in repr(first) and "That was the last." in repr(second) and repr(third) == repr(second)
    page = second.rich
    assert page.count("<details") == 2 and page.count("<details open>") == 1
    assert page.index("<details open>") > page.index(MEAN.hints[0])
    with pytest.raises(KeyError, match="exercise is 'other'; expected one of 'token_logprobs', "):
        hint("other")
