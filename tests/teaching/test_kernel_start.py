"""From the start of a kernel on, an error of a cell that is run too early names the cell to run first."""

import json
import shutil

import pytest

from grpo_lab.teaching import kernel_start
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


SOURCES = [
    "%pip install x",
    "\nimport torch as t\nbegin()",
    "def f(x, e=[g for g in ()]):\n    h = x\n    return h",
    "a, (b, *c) = f(t)\nfor d in a: ...",
    "h = g = 1\nclass K:\n    m = 2",
]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("t", "import torch as t"),
        ("f", "def f(x, e=[g for g in ()]):"),
        *((name, "a, (b, *c) = f(t)") for name in "abcd"),
        ("h", "h = g = 1"),  # the h inside `f`, and the g inside its comprehension, do not count
        ("g", "h = g = 1"),
        ("K", "h = g = 1"),
        ("m", None),
        ("torch", None),
        ("x", None),
    ],
)
def test_the_cell_is_the_first_one_that_defines_the_name(name, line):
    assert kernel_start.first_line_of_defining_cell(name, SOURCES) == line


@pytest.mark.parametrize(
    ("language", "sentence", "unknown"),
    [
        (
            "en",
            "`a` is defined in the cell that begins with `a = 1`. Run that cell first",
            "No cell of this notebook defines",
        ),
        ("zh_CN", "`a` 在开头为 `a = 1` 的单元格里定义。请先运行那个单元格", "本笔记本没有哪个单元格定义了 `z`"),
    ],
)
def test_the_sentence_is_in_the_language_and_names_the_cell(tmp_path, monkeypatch, language, sentence, unknown):
    monkeypatch.setenv("GRPO_LAB_LANG", language)
    path = tmp_path / "lesson.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": ["a = 1"]}]}), encoding="utf-8")
    monkeypatch.setenv("JPY_SESSION_NAME", str(path))
    assert sentence in str(kernel_start.where_defined("a"))
    assert unknown in str(kernel_start.where_defined("z"))
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "none.ipynb"))
    assert kernel_start.where_defined("a") == ""


@pytest.mark.slow
def test_in_a_kernel_both_are_errors_that_end_in_a_sentence(monkeypatch):
    monkeypatch.setenv("GRPO_LAB_LANG", "en")
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    cells = [
        "from IPython import get_ipython\nfrom grpo_lab.teaching.kernel_start import explain_errors",
        "explain_errors(get_ipython())",
        "import signal\nsignal.raise_signal(signal.SIGINT)",
        "print(base)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, allow_errors=True, kernel_name="python3").execute()
    (interrupt,), (name,) = notebook.cells[2].outputs, notebook.cells[3].outputs
    assert interrupt.ename == "KeyboardInterrupt"
    assert interrupt.traceback == ["Interrupted. What ran before is kept; run the cell again to start over."]
    assert name.ename == "NameError"
    assert "print(base)" in "\n".join(name.traceback)
