"""`check` notices if the function in memory is not the one on the page: its cell failed, or was changed and saved."""

import json
import os

import nbformat
import pytest
from nbclient import NotebookClient

pytest.importorskip("IPython")

from IPython.core.interactiveshell import InteractiveShell

from grpo_lab.course import check, progress
from grpo_lab.course.checking import session
from grpo_lab.course.checking.cell_history import CELL_HISTORY
from grpo_lab.course.exercises import exercises_of_notebook
from tests.course.classroom import solution, submit
from tests.course.small_exercise import scaled_mean

RIGHT = """\
import torch
def sequence_logprob(logp, mask):
    return torch.where(mask, logp, 0).sum(-1)
"""
WRONG = RIGHT.replace("sum(-1)", "mean(-1)")
NAME = "sequence_logprob"


@pytest.fixture
def shell():
    session.LAST_CHECKS.clear()
    InteractiveShell.clear_instance()
    new = InteractiveShell.instance()
    CELL_HISTORY.watch()
    yield new
    InteractiveShell.clear_instance()
    session.LAST_CHECKS.clear()
    CELL_HISTORY.forget()


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
    """The cell fails by a syntax error or before the function. A cell that fails after the function has defined it."""
    assert check(run(shell, RIGHT)).right
    assert "2 / 2" in row()
    mine = run(shell, failing)
    verdict = check(mine)
    if "raise" in failing:
        assert verdict.right
        assert CELL_HISTORY.mismatch(mine) == ""
        return
    assert verdict.fault == "stale"
    assert verdict.points == 0
    assert "not the function of your page" in verdict.message
    assert "0 / 2" in row()
    assert check(run(shell, RIGHT)).right
    assert "2 / 2" in row()


def test_progress_sees_a_change_since_the_check(shell, capsys):
    assert check(run(shell, RIGHT)).right
    run(shell, RIGHT)
    assert "2 / 2" in row()
    assert "✓ right" in row(), "the same cell, run again"
    run(shell, WRONG)
    assert "0 / 2" in row()
    assert "changed since it was checked" in row()
    run(shell, RIGHT)
    assert "2 / 2" in row()
    run(shell, RIGHT.replace("):", ")"))
    assert "changed since it was checked" in row()


def test_the_library_s_function_under_the_same_name_is_no_change(shell, capsys):
    """Cells that train with the functions import it."""
    assert check(run(shell, RIGHT)).right
    run(shell, "from grpo_lab.policy_gradient import sequence_logprob")
    assert "2 / 2" in row()


def test_functions_that_no_cell_defined_never_count_as_stale(shell, capsys):
    run(shell, RIGHT, "note = 'def sequence_logprob(logp, mask)'", "note = '''\ndef sequence_logprob(logp):\n'''")
    assert check(shell.user_ns[NAME]).right
    assert "2 / 2" in row()
    assert not any(map(CELL_HISTORY.mismatch, (shell.user_ns[NAME], scaled_mean, 3, None)))


def test_a_function_that_took_the_place_of_one_that_failed_is_judged(shell, capsys):
    """The cell of the name failed, and then the name was assigned to a newer function."""
    run(shell, RIGHT, f"raise ValueError\n{RIGHT}", RIGHT.replace(NAME, "mine"), f"{NAME} = mine")
    assert check(shell.user_ns[NAME], NAME).right


def test_the_same_function_in_another_cell_is_no_change(shell, capsys):
    """Some students paste all of their functions into each cell."""
    assert check(run(shell, RIGHT)).right
    run(shell, f"{RIGHT}\n\ndef another():\n    return 1")
    assert "2 / 2" in row()


def test_check_in_the_cell_of_the_definition_is_no_mismatch(shell, capsys):
    both = f"{RIGHT}\nfrom grpo_lab.course import check\nchecked = check({NAME})"
    run(shell, WRONG, both)
    assert shell.user_ns["checked"].right
    assert "2 / 2" in row()


def test_verdict_begins_with_the_name_of_the_cell(shell, capsys):
    """The number is the one that the notebook shows. A function that no cell defined has no number."""
    run(shell, "1", RIGHT)
    head = repr(check(shell.user_ns[NAME])).splitlines()[0]
    assert "right" in head
    assert "judged: the cell that ran as In [2]" in head
    run(shell, f"{RIGHT}\nfrom grpo_lab.course import check\nchecked = check({NAME})")
    assert "judged: the function of this cell" in shell.user_ns["checked"]._repr_html_()
    assert "judged" not in repr(check(scaled_mean, NAME))


def test_the_same_cell_that_failed_the_second_time_is_no_mismatch(shell, capsys):
    """The cell was interrupted before the function, and has not changed, so the function in memory is the page's."""
    cell = f"if interrupted:\n    raise KeyboardInterrupt\n{RIGHT}"
    run(shell, "interrupted = False", cell, "interrupted = True")
    assert check(run(shell, f"# again\n{cell}")).right
    assert "2 / 2" in row()


def test_failed_helper_cell_is_detected(shell, capsys):
    helper = "import torch\ndef total(x, mask):\n    return torch.where(mask, x, 0).sum(-1)\n"
    calls = f"def {NAME}(logp, mask):\n    return total(logp, mask)\n"
    assert check(run(shell, helper, calls)).right
    run(shell, helper.replace("sum(-1)", "sum(-1"))
    assert "changed since" in row()
    verdict = check(shell.user_ns[NAME])
    assert verdict.fault == "stale"
    assert "`total` in memory" in verdict.message
    assert "0 / 2" in row()
    assert check(run(shell, helper)).right
    assert "2 / 2" in row()


@pytest.mark.parametrize(
    "magic", ["%%time\n", "%pwd\n", "%%capture output\n", "%%prun -q\n", "\n%%time\n%%capture\n", "# %%\n"]
)
def test_a_magic_in_a_cell_is_no_cell_mismatch(shell, magic, capsys):
    run(shell, magic + RIGHT)
    assert check(shell.user_ns[NAME]).right
    assert check(run(shell, RIGHT)).right
    assert "2 / 2" in row()
    run(shell, f"%%writefile {os.devnull}\n{WRONG}", f"%%nothing\n{WRONG}", f"%%timeit -n 1 -r 1\n{WRONG}")
    assert check(shell.user_ns[NAME]).right
    assert "2 / 2" in row(), "a cell that defines nothing here"


@pytest.mark.parametrize("defined", ["before", "after"])
def test_the_order_of_import_and_definition_does_not_matter(defined, capsys):
    """The package may be imported after the cells of the functions ran, so that their runs were not recorded."""
    session.LAST_CHECKS.clear()
    CELL_HISTORY.forget()
    InteractiveShell.clear_instance()
    new = InteractiveShell.instance()
    try:
        cells = [RIGHT, f"from grpo_lab.course import check, progress\nmine = check({NAME})"]
        run(new, *cells) if defined == "before" else run(new, cells[1].partition("\n")[0], *cells)
        run(new, RIGHT)
        assert new.user_ns["mine"].right
        assert "2 / 2" in row()
        run(new, WRONG)
        assert "changed since it was checked" in row()
    finally:
        InteractiveShell.clear_instance()
        session.LAST_CHECKS.clear()
        CELL_HISTORY.forget()


class SavedNotebook:
    """A notebook in JupyterLab, whose cells have ids, and whose file has the state of the last save."""

    def __init__(self, shell, path, monkeypatch, **cells: str):
        self.shell, self.path, self.cells, self.saves = shell, path, cells, 0
        self.save()
        monkeypatch.setenv("JPY_SESSION_NAME", str(path))

    def save(self, **changed: str) -> None:
        self.cells |= changed
        cells = [nbformat.v4.new_code_cell(source, id=name) for name, source in self.cells.items() if source]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), self.path)
        self.saves += 1
        os.utime(self.path, ns=(self.saves, self.saves))  # each save has a time of its own, even within a clock tick

    def run(self, *names: str):
        for name in names or self.cells:
            self.shell.run_cell(self.cells[name], store_history=True, cell_id=name)
        return self.shell.user_ns.get(NAME)


@pytest.fixture
def notebook(shell, tmp_path, monkeypatch):
    return SavedNotebook(shell, tmp_path / "02.ipynb", monkeypatch, setup="import torch", stub=RIGHT, last=f"{NAME}")


def test_a_cell_that_was_changed_and_saved_is_seen(notebook, capsys):
    assert check(notebook.run()).right
    notebook.save(stub=WRONG)
    assert "0 / 2" in row()
    assert "changed since it was checked" in row()
    verdict = check(notebook.shell.user_ns[NAME])
    assert verdict.fault == "stale"
    assert "In [2]" in verdict.message
    assert "saved" in verdict.message
    assert not check(notebook.run("stub")).right
    assert "changed" not in row()
    notebook.save(stub=RIGHT.replace("):", ")"))
    assert check(notebook.shell.user_ns[NAME]).fault == "stale", "unfinished, and saved"


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"last": "1 + 1", "another": "print(2)"},
        {"stub": "# as in the lesson\n" + RIGHT.replace("    return", '    """Sum."""\n\n    # of tokens\n    return')},
        {"stub": "", "pasted": RIGHT},
        {"stub": ""},
        {"stub": "import torch", "second_half": RIGHT},
        {"stub": f"{RIGHT}\ncheck({NAME})"},
        {"stub": "%%time\n" + RIGHT},
    ],
)
def test_changes_of_the_file_outside_the_function_are_no_cell_mismatch(notebook, change, capsys):
    """Such changes are: a save with outputs, another cell, comments, a cell moved, deleted or split, an added check."""
    assert check(notebook.run()).right
    notebook.save(**change)
    assert check(notebook.shell.user_ns[NAME]).right
    assert "2 / 2" in row()


def test_cells_that_ran_unsaved_are_judged(notebook, capsys):
    """JupyterLab does not save when a cell runs, so a file from before the run is not compared."""
    notebook.save(stub=WRONG)
    notebook.cells["stub"] = RIGHT
    assert check(notebook.run()).right
    assert "2 / 2" in row()
    notebook.save()
    assert check(notebook.shell.user_ns[NAME]).right
    assert "2 / 2" in row()


def test_the_first_definition_stays_if_an_attempt_in_another_cell_fails(notebook, capsys):
    """The attempt did not replace the function in memory, which is still that of the first cell."""
    assert check(notebook.run()).right
    notebook.cells["attempt"] = WRONG.replace("):", ")")
    notebook.run("attempt")
    verdict = check(notebook.shell.user_ns[NAME])
    assert verdict.right
    assert "another one with this name failed (In [4])" in verdict.judged_cell
    assert "2 / 2" in row()
    notebook.cells["stub"] = WRONG.replace("):", ")")
    assert check(notebook.run("stub")).fault == "stale"


@pytest.mark.parametrize("content", [None, "", "{}", "[]", '{"cells": [{"cell_type": "code", "id": "stub"}]}'])
def test_a_notebook_file_that_cannot_be_read_changes_no_verdict(notebook, content, capsys):
    assert check(notebook.run()).right
    notebook.path.unlink() if content is None else notebook.path.write_text(content)
    assert check(notebook.shell.user_ns[NAME]).right
    assert "2 / 2" in row()


def test_the_notebook_file_changes_no_verdict_of_a_cell_without_an_id(notebook, capsys):
    """VS Code and nbclient give cells no ids, and a kernel in a notebook's terminal has the notebook's name, too."""
    mine = run(notebook.shell, RIGHT)
    notebook.save(stub=WRONG)
    assert check(mine).right
    assert "2 / 2" in row()


@pytest.mark.parametrize("frontend", ["JupyterLab", "VS Code", "script"])
def test_a_solved_assignment_has_no_cell_mismatch(frontend, shell, tmp_path, monkeypatch, capsys):
    """All cells run twice, and the notebook is saved with other bytes after each cell."""
    number, path = "02", tmp_path / "02.ipynb"
    answers = {name: solution(exercise) for name, exercise in exercises_of_notebook(number).items()}
    cells = nbformat.read(submit(path, number, **answers), as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code" and "demo" not in cell.id]
    if frontend == "JupyterLab":
        monkeypatch.setenv("JPY_SESSION_NAME", str(path))
    for save in range(2 * len(code)):
        cell = code[save % len(code)]
        if frontend == "script":
            exec(compile(cell.source, "solved.py", "exec"), shell.user_ns)
        else:
            shell.run_cell(cell.source, store_history=True, cell_id=cell.id if frontend == "JupyterLab" else None)
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"saves": save}), path)
    points = sum(exercise.points for exercise in exercises_of_notebook(number).values())
    assert f"{points} of {points} points" in repr(progress(number))
    assert "changed" not in repr(progress(number))
    for name in answers:
        assert check(shell.user_ns[name]).right


@pytest.mark.slow
def test_cell_mismatch_is_detected_in_a_real_kernel(tmp_path):
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
    outputs = [json.dumps(cell.get("outputs", [])) for cell in notebook.cells]
    assert "Well done" in outputs[2]
    assert "not the function of your page" in outputs[4]
    assert "0 / 2" in outputs[5]
