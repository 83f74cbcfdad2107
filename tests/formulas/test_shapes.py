"""The shape that a line states is the shape of its value, in calls in which all axes have different sizes."""

import pkgutil
from functools import partial

import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from grpo_lab.formulas import Equation
from grpo_lab.formulas.views import recording
from grpo_lab.kl import kl_estimate
from tests.support.equations import formula_map
from tests.support.formula_calls import ANSWERS, CALLS, COMPLETIONS, made_up_arguments


def test_every_stated_shape_is_true():
    by_function: dict[str, list[Equation]] = {}
    for equation in formula_map().values():
        by_function.setdefault(equation.function, []).append(equation)
    wrong = [
        fault
        for name, its_equations in by_function.items()
        for fault in faults(pkgutil.resolve_name(name), its_equations)
    ]
    assert wrong == []


def first_rows(x: Float[Tensor, "B T"], weights: Float[Tensor, " B"], count: int) -> Float[Tensor, "B T"]:
    return x[:count]


def test_shapes_of_arguments_and_results_are_checked_in_each_call():
    """The checks are those of tests/conftest.py, which the functions of the package have while tests run."""
    pytest.importorskip("beartype")
    from tests.support.shape_checks import checks_shapes

    checked, kl = checks_shapes(first_rows), partial(kl_estimate, estimator="k1")
    for B in (2, 3):  # in each call a name has a new length
        assert checked(torch.ones(B, 5), torch.ones(B), B).shape == kl(torch.ones(B, 5), torch.ones(B, 5)).shape
    x = torch.ones(2, 5)
    wrong = [(x[0], x[:, 0], 2), (x, x, 2), (x.long(), x[:, 0], 2), (x, torch.ones(3), 2), (x, x[:, 0], 2.0)]
    for call in (*(partial(checked, *arguments) for arguments in wrong), partial(kl, x, x[0])):
        with pytest.raises(TypeCheckError, match="parameter"):
            call()
    with pytest.raises(TypeCheckError, match="return"):
        checked(x, x[:, 0], 1)


def test_shapes_are_not_checked_where_the_checks_are_off(no_checker):
    pytest.importorskip("beartype")
    from tests.support.shape_checks import checks_shapes

    assert checks_shapes(first_rows)(torch.ones(2), torch.ones(1, 1), 1).shape == (1,)


def faults(function, equations: list[Equation]) -> list[str]:
    """Return the equations whose value has another shape than their line states, or whose line no call reaches."""
    passes: dict[str, list] = {}
    axes: dict[str, int] = {}
    for fixed_arguments in CALLS.get(function.__name__, [{}]):
        arguments = made_up_arguments(function, axes) | fixed_arguments
        if function.__name__ == "judge_reward":  # the line is in the function that judge_reward returns
            function, arguments = function(lambda question: "yes"), {"prompts": ["", ""]} | COMPLETIONS | ANSWERS
        if function.__name__ == "first_step_movement":  # the line is in the function that it returns
            function, arguments = function(**arguments), {"step": 1, "metrics": {"learning_rate": 1.0}}
        with recording(function, equations) as values:
            function(**arguments)
        for tag, got in values.items():
            passes.setdefault(tag, []).extend(got)
    unreached = [f"({e.tag}) was not reached" for e in equations if e.tag not in passes]
    return unreached + [
        f"({e.tag}) states {e.shape}, and its value has the shape {sizes_of(value)}; axes: {axes}"
        for e in equations
        for value in passes.get(e.tag, [])
        if not fits(e.shape, value, axes)
    ]


def sizes_of(value) -> tuple[int, ...]:
    if isinstance(value, Tensor):
        return tuple(value.shape)
    return (len(value),) if isinstance(value, list) else ()


def fits(shape: str, value, axes: dict[str, int]) -> bool:
    """Return True if the value has this shape; an axis of no argument may have any size that no other axis has."""
    if isinstance(value, tuple):
        return all(fits(shape, part, axes) for part in value)
    names, sizes = [] if shape == "scalar" else shape.split(), sizes_of(value)
    if len(names) != len(sizes):
        return False
    for name, size in zip(names, sizes, strict=True):
        if name not in axes and not name.isdigit() and size not in axes.values():
            axes[name] = size
    return all(
        size == (int(name) if name.isdigit() else axes.get(name)) for name, size in zip(names, sizes, strict=True)
    )
