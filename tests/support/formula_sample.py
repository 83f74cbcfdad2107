"""Functions with equations in all forms, for the tests of `formulas`, and `load`, which imports more from text."""

import importlib.util
import itertools
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor


@contextmanager
def quiet():
    yield


def centre(rewards: Float[Tensor, "P G"], scale: str = "none") -> Float[Tensor, "P G"]:
    r"""Centre the rewards, and *perhaps* scale them.

    \mu_p = \frac{1}{G} \sum_i r_{p,i} \tag{9.1}
    c_{p,i} = r_{p,i} - \mu_p        \tag{9.2}
    (a, b) = (\min |c|, \max \|c\|)  \tag{9.10}
    s = a b \tag{9.3}

    Eq. (9.2) is also a citation.
    """
    mean = rewards.mean(-1, keepdim=True)  # P 1 (9.1)
    # fmt: off
    centred = (  # P G (9.2)
        rewards
        - mean
    )
    # fmt: on
    low, high = centred.abs().min(), (centred.abs() | 0 if False else centred.abs()).max()  # scalar (9.10)
    with quiet():
        return centred * low * high  # P G (9.3)


def fold(values: Float[Tensor, " T"]) -> Float[Tensor, ""]:
    r"""Sum.

    x_t = x_{t-1} + v_t \tag{9.4}
    """
    total = torch.zeros(())
    for value in values:
        total += value  # scalar (9.4)
    return total


def fails(x: float, deep: int = 0) -> float:
    r"""Fail, and recurse.

    y = \frac{1}{x} \tag{9.6}
    z = y + 1 \tag{9.7}
    """
    if deep:
        fails(x + 1, deep - 1)
    y = 1 / x  # scalar (9.6)
    try:
        z = fails(0.0) if x == 2 else y + 1  # scalar (9.7)
    except ZeroDivisionError:
        z = -1.0
    return z


def plain(x):
    """No equation."""
    return x


_counter = itertools.count()


def load(folder: Path, source: str):
    """Write `source` to a file and import it; equations are paired with code from the source file of a function."""
    name = f"formula_sample_{next(_counter)}"
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
