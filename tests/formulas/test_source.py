r"""Equations are paired with lines of code as written; an error is raised unless each has exactly one partner."""

import re
from pathlib import Path

import pytest
import torch

from grpo_lab.formulas.source import read_equations
from tests.support import formula_sample as sample
from tests.support.formula_sample import load


def test_equations_pairs_each_tag_with_its_statement():
    mean, centred, extremes, product = read_equations(sample.centre)
    assert (mean.tag, mean.latex) == ("9.1", r"\mu_p = \frac{1}{G} \sum_i r_{p,i}")
    assert (mean.code, mean.names) == ("mean = rewards.mean(-1, keepdim=True)", ("mean",))
    assert centred.code == "centred = (\n    rewards\n    - mean\n)"
    assert centred.shape == "P G" and centred.end_lineno - centred.lineno == 3
    lines = Path(sample.__file__).read_text(encoding="utf-8").splitlines()
    assert lines[mean.lineno - 1].strip().startswith("mean = ")
    assert extremes.names == ("low", "high") and extremes.tag == "9.10"
    assert (product.code, product.names) == ("return centred * low * high", ())
    assert read_equations(sample.plain) == []


Y, Z = r"y = x \tag{1.1}", r"z = x \tag{1.2}"
# Refused sources: equations of the docstring, and lines of code.
FAULTS = {
    "the equations are (1.1), and the lines of code none": ([Y], ["y = x"]),
    "the equations are none, and the lines of code (1.1)": ([], ["y = x  # N (1.1)"]),
    "the equations are (1.1), (1.2), and the lines of code (1.2), (1.1)": (
        [Y, Z],
        ["z = x  # N (1.2)", "y = x  # N (1.1)"],
    ),
    "the equations are (1.1), and the lines of code (1.1), (1.1)": ([Y], ["y = x  # N (1.1)", "y = x + 1  # N (1.1)"]),
    "one equation per line": ([f"{Y} {Z}"], ["y = x  # N (1.1)"]),
    r"one equation per line, ending in one \tag": ([r"y = x \tag{1.a}"], []),
    "on a statement that already has one": ([Y, Z], ["y = [  # N (1.1)", "    x,", "]  # N (1.2)"]),
    "does not state the shape of its value, as in # P 1 (1.1)": ([Y], ["y = x  # (1.1)"]),
    "is on neither an assignment": ([Y], ["print(x)  # N (1.1)"]),
}


def function_of(equations: list[str], code: list[str], raw: str = "r") -> str:
    lines = ["def f(x):", f'    {raw}"""F.', "", *(f"    {line}" for line in equations), '    """']
    return "\n".join([*lines, *(f"    {line}" for line in code), "    return x", ""])


def test_read_equations_refuses_tags_without_their_line(tmp_path: Path):
    sources = {message: function_of(*fault) for message, fault in FAULTS.items()}
    sources["the docstring is not raw"] = function_of([Y], ["y = x  # N (1.1)"], raw="")
    for message, source in sources.items():
        with pytest.raises(ValueError, match=f"f: .*{re.escape(message)}"):
            read_equations(load(tmp_path, source).f)
    for wrong in (torch.exp, torch.nn.ReLU):
        with pytest.raises(ValueError, match="expected a function or method written in Python, with def"):
            read_equations(wrong)
