"""Errors of cells: an interrupt is shown as one line, and an undefined name with the cell to run; both stay errors."""

import json

import pytest

from grpo_lab.teaching import cell_errors

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
    assert cell_errors.first_line_of_defining_cell(name, SOURCES) == line


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
    assert sentence in str(cell_errors.where_defined("a"))
    assert unknown in str(cell_errors.where_defined("z"))
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "none.ipynb"))
    assert cell_errors.where_defined("a") == ""


@pytest.mark.slow
def test_in_a_kernel_both_are_errors_that_end_in_a_sentence(monkeypatch):
    monkeypatch.setenv("GRPO_LAB_LANG", "en")
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    cells = [
        "from IPython import get_ipython\nfrom grpo_lab.teaching.cell_errors import explain_errors",
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
