"""From the start of a kernel on, an error of a cell that is run too early names the cell to run first."""

import shutil

import pytest

from grpo_lab.teaching.kernel_start import explain_errors_in_every_kernel


def test_a_configuration_of_somebody_else_stays(tmp_path):
    file = explain_errors_in_every_kernel(tmp_path)
    assert file == explain_errors_in_every_kernel(tmp_path), "a second time changes nothing"
    file.write_text("mine = 1", encoding="utf-8")
    assert explain_errors_in_every_kernel(tmp_path) is None
    assert file.read_text(encoding="utf-8") == "mine = 1"


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "sentence"), [("lessons", "Run that cell first"), ("zh", "请先运行那个单元格")])
def test_a_kernel_says_which_cell_to_run_before_any_cell_has_run(folder, sentence, tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    file = explain_errors_in_every_kernel(tmp_path)
    (tmp_path / folder).mkdir()
    cells = [nbformat.v4.new_code_cell(cell) for cell in ("model = 1", "print(model)")]
    lesson = tmp_path / folder / "lesson.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), lesson)
    for name in ("LC_ALL", "LC_MESSAGES", "LANG", "GRPO_LAB_LANG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "en_GB.UTF-8")
    monkeypatch.setenv("JPY_SESSION_NAME", str(lesson))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "home"))
    profile = tmp_path / "home" / "profile_default"
    profile.mkdir(parents=True)
    # A kernel reads this folder, too. A test must not write into the folder of the environment.
    shutil.copy(file, profile)
    only_second = nbformat.v4.new_notebook(cells=cells[1:])
    client = nbclient.NotebookClient(only_second, allow_errors=True, kernel_name="python3")
    client.execute(cwd=str(lesson.parent))
    (error,) = only_second.cells[0].outputs
    assert error.ename == "NameError"
    assert sentence in error.traceback[-1]
    assert "model = 1" in error.traceback[-1]
