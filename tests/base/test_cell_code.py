"""The Python of a cell keeps its lines, and lines that only Jupyter understands become `pass`."""

import subprocess
import sys

import pytest

from grpo_lab.base.cell_code import functions_of_cell, parse_cell, python_of_cell

TEXT = 'a = """\n%%time\n%x\n!y\nz?\n\u2028"""\nb = 5 \\\n%3'


@pytest.mark.parametrize(
    ("source", "python"),
    [
        ("", ""),
        ("a = 1\n", "a = 1\n"),
        (TEXT, TEXT),
        (
            "%matplotlib inline\nif a:\n    !ls\n    ?print\nprint??\na.b?",
            "pass\nif a:\n    pass\n    pass\npass\npass",
        ),
        ("\n%%time\n%%capture output\na = 1", "\n\n\na = 1"),
        ("%%prun\n%pwd\na = 1", "\npass\na = 1"),
        ("a = 1\n%%time", "a = 1\npass"),
        ("def f(:", "def f(:"),
        ("%%timeit\na = 1", None),
        ("%%timer\na = 1", None),
        ("\n%%bash\nls", None),
        ("%%time\n%%bash\nls", None),
    ],
)
def test_python_of_a_cell(source, python):
    assert python_of_cell(source) == python


@pytest.mark.parametrize("source", ["def f(:", "def f(): 0\0", "(" * 10_000, "-" * 100_000 + "1", "%%bash\ndef f(): 0"])
def test_a_cell_that_cannot_be_parsed_has_no_functions(source):
    assert parse_cell(source) is None
    assert functions_of_cell(source) == []


def test_functions_of_a_cell_are_those_at_its_top_level():
    source = "%%time\ndef f():\n    def g(): ...\nasync def h(): ...\nclass K:\n    def k(self): ..."
    assert [function.name for function in functions_of_cell(source)] == ["f", "h"]


def test_cell_code_is_imported_without_torch():
    code = "import sys, grpo_lab.base.cell_code; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
