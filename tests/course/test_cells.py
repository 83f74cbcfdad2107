"""A cell that was run again and failed, or defines another function since: check and progress see it."""

import json

import nbformat
import pytest
from nbclient import NotebookClient

pytest.importorskip("IPython")

from IPython.core.interactiveshell import InteractiveShell

from grpo_lab.course import check, progress
from grpo_lab.course.checking import session
from grpo_lab.course.checking.cells import CELLS
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
    new = InteractiveShell.instance()
    CELLS.watch()
    yield new
    InteractiveShell.clear_instance()
    session.ENTRIES.clear()
    CELLS.texts.clear()
    CELLS.stale.clear()


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
        assert verdict.right and not CELLS.is_stale(mine)
        return
    assert verdict.fault == "stale" and verdict.points == 0 and "not the function of your page" in verdict.message
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
    run(shell, RIGHT, "note = 'def sequence_logprob(logp, mask)'", "note = '''\ndef sequence_logprob(logp):\n'''")
    assert check(shell.user_ns[NAME]).right and "2 / 2" in row()
    assert not CELLS.is_stale(shell.user_ns[NAME]) and not CELLS.is_stale(scaled_mean) and not CELLS.is_stale(3)


def test_a_function_that_took_the_place_of_one_that_failed_is_judged(shell, capsys):
    """The cell failed, and then the name was given to another function: that one is no older one."""
    run(shell, RIGHT, f"raise ValueError\n{RIGHT}", RIGHT.replace(NAME, "mine"), f"{NAME} = mine")
    assert check(shell.user_ns[NAME], NAME).right


def test_the_same_function_in_another_cell_is_no_change(shell, capsys):
    """As where somebody pastes all functions into each cell."""
    assert check(run(shell, RIGHT)).right
    run(shell, f"{RIGHT}\n\ndef another():\n    return 1")
    assert "2 / 2" in row()


def test_definition_and_check_in_one_cell(shell, capsys):
    both = f"{RIGHT}\nfrom grpo_lab.course import check\nchecked = check({NAME})"
    run(shell, WRONG, both)
    assert shell.user_ns["checked"].right and "2 / 2" in row()


@pytest.mark.slow
def test_a_real_kernel_sees_it_too(tmp_path):
    cells = [
        "from grpo_lab.course import check, progress",
        RIGHT,
        f"check({NAME})",
        RIGHT.replace("):", ")"),
        f"check({NAME})",
        "progress()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    NotebookClient(notebook, timeout=300, kernel_name="python3", allow_errors=True).execute()
    said = [json.dumps(cell.get("outputs", [])) for cell in notebook.cells]
    assert "Well done" in said[2] and "not the function of your page" in said[4] and "0 / 2" in said[5]
