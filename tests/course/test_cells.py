"""A cell that was run again and failed, or defines another function since: check and progress see it."""

import pytest

pytest.importorskip("IPython")

from IPython.core.interactiveshell import InteractiveShell

from grpo_lab.course import check, progress
from grpo_lab.course.checking import session
from grpo_lab.course.checking.cells import is_changed, is_stale
from tests.course.test_check import scaled_mean

RIGHT = """\
import torch
def sequence_logprob(logp, mask):
    return torch.where(mask, logp, 0).sum(-1)
"""
WRONG = RIGHT.replace("sum(-1)", "mean(-1)")
NAME = "sequence_logprob"


@pytest.fixture
def shell():
    session.ENTRIES.clear()
    InteractiveShell.clear_instance()
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()
    session.ENTRIES.clear()


def run(shell, *cells: str):
    for cell in cells:
        shell.run_cell(cell, store_history=True)
    return shell.user_ns[NAME]


def row() -> str:
    return next(line for line in repr(progress()).splitlines() if line.startswith(f"| {NAME} "))


@pytest.mark.parametrize(
    "failing", [RIGHT.replace("):", ")"), f"{RIGHT}raise ValueError", RIGHT.replace("torch\n", "torchh\n")]
)
def test_a_cell_that_failed_is_not_the_function_in_memory(shell, failing, capsys):
    """By a mistake of syntax, or before it came to the function; but one that failed behind it has defined it."""
    assert check(run(shell, RIGHT)).right and "2 / 2" in row()
    mine = run(shell, failing)
    verdict = check(mine)
    if "raise" in failing:
        assert verdict.right and not is_stale(mine)
        return
    assert verdict.fault == "stale" and verdict.points == 0 and "not the function in memory" in verdict.message
    assert "0 / 2" in row()
    assert check(run(shell, RIGHT)).right and "2 / 2" in row()


def test_progress_sees_a_change_since_the_check(shell, capsys):
    assert check(run(shell, RIGHT)).right
    run(shell, RIGHT)
    assert "2 / 2" in row() and "✓ right" in row(), "the same cell, run again"
    run(shell, WRONG)
    assert "0 / 2" in row() and "changed since it was checked" in row()
    run(shell, RIGHT)
    assert "2 / 2" in row()
    run(shell, RIGHT.replace("):", ")"))
    assert "changed since it was checked" in row()


def test_what_no_cell_defined_is_never_stale(shell, capsys):
    run(shell, RIGHT, "note = 'def sequence_logprob(logp, mask)'", f"    # {RIGHT}")
    assert not is_stale(shell.user_ns[NAME]) and not is_stale(scaled_mean) and not is_stale(3)


def test_outside_of_a_notebook_nothing_changes():
    assert not is_stale(scaled_mean) and not is_changed(scaled_mean, "scaled_mean")
