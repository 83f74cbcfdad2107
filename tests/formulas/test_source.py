r"""The pairing of equations and lines of code is read as written, and refused where it is not one to one."""

import re
from pathlib import Path

import pytest
import torch

from grpo_lab.formulas.source import check, read_equations
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


FAULTS = {
    "no line of code": r'''
        def f(x):
            r"""F.

            y = x \tag{1.1}
            """
            y = x
            return y
        ''',
    "no equation of the docstring": '''
        def f(x):
            """F."""
            y = x  # N (1.1)
            return y
        ''',
    "in the order 1.1, 1.2, their lines of code 1.2, 1.1": r'''
        def f(x):
            r"""F.

            y = x \tag{1.1}
            z = x \tag{1.2}
            """
            z = x  # N (1.2)
            y = x  # N (1.1)
            return y, z
        ''',
    "not raw": '''
        def f(x):
            """F.

            y = x \\tag{1.1}
            """
            y = x  # N (1.1)
            return y
        ''',
    "control characters": '''
        def f(x):
            r"""F.

            y = x\t+ 1 \\tag{1.1}
            """
            y = x  # N (1.1)
            return y
        ''',
    "one equation a line": r'''
        def f(x):
            r"""F.

            y = x \tag{1.1} z = x \tag{1.2}
            """
            y = x  # N (1.1)
            z = x  # N (1.2)
            return y, z
        ''',
    r"one equation a line, ending in one \tag": r'''
        def f(x):
            r"""F.

            y = x \tag{1.a}
            """
            return x
        ''',
    "stands twice in the docstring": r'''
        def f(x):
            r"""F.

            y = x \tag{1.1}
            z = x \tag{1.1}
            """
            y = x  # N (1.1)
            return y
        ''',
    "stands twice in the code": r'''
        def f(x):
            r"""F.

            y = x \tag{1.1}
            """
            y = x  # N (1.1)
            y = x + 1  # N (1.1)
            return y
        ''',
    "stand on one statement": r'''
        def f(x):
            r"""F.

            y = x \tag{1.1}
            z = x \tag{1.2}
            """
            y = [  # N (1.1)
                x,
            ]  # N (1.2)
            return y
        ''',
    "does not state the shape of its value, as in # P 1 (1.1)": r'''
        def f(x):
            r"""F.

            y = x \tag{1.1}
            """
            y = x  # (1.1)
            return y
        ''',
    "first or last line of no statement": r'''
        def f(x):
            r"""F.

            y = x \tag{1.1}
            """
            # N (1.1)
            y = x
            return y
        ''',
    "stands on no assignment": r'''
        def f(x):
            r"""F.

            y = x \tag{1.1}
            """
            print(x)  # N (1.1)
            return x
        ''',
}


@pytest.mark.parametrize("message", FAULTS)
def test_check_refuses(message: str, tmp_path: Path):
    module = load(tmp_path, FAULTS[message].replace(r"\t+", "\t+"))
    with pytest.raises(ValueError, match=f"f: .*{re.escape(message)}"):
        check(module.f)


def test_check_refuses_what_is_no_function():
    for wrong in (torch.exp, torch.nn.ReLU):
        with pytest.raises(ValueError, match="expected a function or method written in Python"):
            check(wrong)
