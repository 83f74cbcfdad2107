"""`progress` counts the points of what was checked, and `hint` shows hints one at a time."""

import re
from dataclasses import replace

import pytest
import torch

from grpo_lab.course import check, finished, hint, progress
from grpo_lab.course import exercises as registry
from grpo_lab.course.checking import session
from grpo_lab.course.exercise import Case
from grpo_lab.course.exercises import find_exercise
from tests.course.small_exercise import MEAN, not_masked, stub, written_differently

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


def test_progress_points_are_those_of_check():
    assert "Nothing has been checked yet" in repr(progress())
    check(stub, ALONE)
    assert row("scaled_mean") == ["scaled_mean", "0 / 2", "○ not done yet"]
    check(not_masked, ALONE)
    assert row("scaled_mean") == ["scaled_mean", "0 / 2", "✗ not right yet"]
    assert finished() == {}
    assert check(without_gradient, ALONE).points == 1
    assert row("scaled_mean")[1:3] == ["1 / 2", "◐ partly right"]
    assert "1 of 2 points." in repr(progress())
    assert finished() == {}, "a loss without a gradient trains nothing"
    check(written_differently, ALONE)
    assert row("scaled_mean") == ["scaled_mean", "2 / 2", "✓ right"]
    assert finished() == {"scaled_mean": written_differently}
    assert "2 of 2 points." in repr(progress())
    check(not_masked, ALONE)
    assert row("scaled_mean")[2:] == ["✗ not right yet"]
    assert finished() == {}


def test_a_right_formula_is_finished_even_if_an_extreme_input_fails():
    extreme = Case(lambda seed: ((torch.tensor([[float("nan"), 1.0]]), torch.tensor([[False, True]])), {}), "NaN")
    exercise = replace(ALONE, cases=(*ALONE.cases, replace(extreme, tested_property="stability")))

    def mine(values, mask, scale=1.0):
        return scale * (values * mask).sum(-1) / mask.sum(-1).clamp(min=1)

    assert not check(mine, exercise).right
    assert finished() == {"scaled_mean": mine}


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
    assert len(rows) > 3
    assert sum("scaled_mean" in line for line in rows) == 1
    assert all("○ not done yet |" in line for line in rows if "scaled_mean" not in line)


def test_hints_unfold_one_at_a_time():
    first, second, third = hint("scaled_mean"), hint("scaled_mean"), hint("scaled_mean")
    assert MEAN.hints[0] in repr(first)
    assert MEAN.hints[1] not in repr(first) + first.rich
    assert "1 more" in repr(first)
    assert "That was the last." in repr(second)
    assert repr(third) == repr(second)
    page = second.rich
    assert page.count("<details") == 2
    assert page.count("<details open>") == 1
    assert page.index("<details open>") > page.index(MEAN.hints[0])
    with pytest.raises(KeyError, match="exercise is 'other'; expected one of 'token_logprobs', "):
        hint("other")


NEEDS_OTHERS = """
def ratio_and_surrogate(logp):
    return clipped_surrogate(importance_ratio(logp, logp, torch.ones_like(logp).bool()), logp, 0.2)

def aggregate(values, mask, loss_type, max_completion_length=None, num_items=None):
    return {expression}
"""


@pytest.mark.parametrize("calls", ["clipped_surrogate(values, values, 0.2)", "ratio_and_surrogate(values)"])
def test_an_earlier_function_whose_cell_did_not_run_is_supplied_to_the_check(calls, monkeypatch):
    """The check lends the library's version, as the grading does, and removes it afterwards."""
    namespace: dict = {"torch": torch}
    exec(
        "def importance_ratio(*a):\n    raise NotImplementedError\n" + NEEDS_OTHERS.format(expression=calls), namespace
    )
    before = dict(namespace)
    verdict = check(namespace["aggregate"], "aggregate")
    assert not verdict.right
    assert namespace == before
    assert "Not defined in your notebook: `clipped_surrogate`. The check lent" in verdict.message
    with pytest.raises(NameError, match="clipped_surrogate"):
        namespace["aggregate"](torch.ones(1, 2), None, "grpo")
    monkeypatch.setenv("GRPO_LAB_LANG", "zh_CN")
    assert "笔记本里还没有定义：`clipped_surrogate`。" in verdict.details.replace("\n", "")


def test_an_undefined_name_that_is_no_exercise_stays_a_name_error():
    namespace: dict = {}
    exec(NEEDS_OTHERS.format(expression="clipped_surogate(values, values, 0.2)"), namespace)
    verdict = check(namespace["aggregate"], "aggregate")
    assert "NameError" in verdict.message
    assert "clipped_surogate" in verdict.message
    assert "lent" not in verdict.message
    namespace["clipped_surrogate"] = find_exercise("clipped_surrogate").function
    exec(NEEDS_OTHERS.format(expression="clipped_surrogate(values, values, 0.2)"), namespace)
    assert "lent" not in check(namespace["aggregate"], "aggregate").message
