"""Find the shape of the value of every equation, in the names of the axes that the signature declares."""

import ast
import inspect
import itertools
import math
import textwrap
import typing
from collections.abc import Callable, Iterator
from contextlib import suppress

import torch
from torch import Tensor

from grpo_lab.formulas.recording import recording
from grpo_lab.formulas.source import Equation

AXIS_SIZES = (3, 5, 7, 11, 13, 17, 19)
MAX_TRIALS = 32
SCALAR = "scalar"


def shapes(function: Callable, equations: list[Equation]) -> dict[str, str]:
    """The shape of every equation's value in the names of the axes, such as "P 1"; unknown ones are left out.

    A comment states it; else the function is run on made-up tensors in which every axis of the annotations has a size
    of its own, so that the sizes found tell the axes; else a value that is returned has the shape of the annotation.
    """
    found = _returned_shapes(inspect.unwrap(function), equations)
    for arguments, axes in _made_up_calls(function):
        with suppress(Exception), recording(function, equations) as values:
            function(**arguments)  # need not be valid arguments: the lines reached before an error count
        for tag, got in values.items():
            if (shape := _name_axes(got[-1], axes)) is not None:
                found[tag] = shape
    return found | {e.tag: e.shape for e in equations if e.shape}


def _returned_shapes(function: Callable, equations: list[Equation]) -> dict[str, str]:
    """The shape of the return annotation, for equations whose value is returned as it is."""
    annotation = inspect.signature(function, eval_str=True).return_annotation
    axes = _axes(annotation)
    if axes is None or "#" in annotation.dim_str:  # #T may be T or 1
        return {}
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    returned = {s.value.id for s in ast.walk(tree) if isinstance(s, ast.Return) and isinstance(s.value, ast.Name)}
    return {e.tag: " ".join(axes) or SCALAR for e in equations if not e.names or set(e.names) <= returned}


def _made_up_calls(function: Callable) -> Iterator[tuple[dict, dict[int, str]]]:
    """Arguments for trial runs, with {size: axis}. They go through the strings that the code compares with, too."""
    function = inspect.unwrap(function)
    arguments, axes, choices = {}, {}, {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        kinds = typing.get_args(parameter.annotation) or (parameter.annotation,)
        tensor = next((kind for kind in kinds if _axes(kind) is not None), None)
        if tensor is not None:
            arguments[name] = _made_up_tensor(tensor, axes)
        else:
            choices[name] = _made_up_choices(function, parameter, kinds)
    for values in itertools.islice(itertools.product(*choices.values()), MAX_TRIALS):
        yield arguments | dict(zip(choices, values, strict=True)), {size: axis for axis, size in axes.items()}


def _made_up_choices(function: Callable, parameter: inspect.Parameter, kinds: tuple) -> list:
    default = [] if parameter.default is parameter.empty else [parameter.default]
    if str in kinds:
        return default + _compared_strings(function)
    if kinds[0] in (int, float) and default in ([], [0]):
        return [*default, kinds[0](1)]  # a weight of zero often skips the line it weighs
    return default


def _compared_strings(function: Callable) -> list[str]:
    """Every string that the code compares something with, be it written there or in a constant of the module."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    found = []
    for node in [part for test in ast.walk(tree) if isinstance(test, ast.Compare) for part in ast.walk(test)]:
        if isinstance(node, ast.Constant):
            found.append(node.value)
        elif isinstance(node, ast.Name) and isinstance(named := function.__globals__.get(node.id), tuple | list):
            found += named
    return list(dict.fromkeys(text for text in found if isinstance(text, str)))


def _axes(annotation) -> list[str] | None:
    """The axes of a jaxtyping annotation, "B #T" -> ["B", "T"]; None if it is none, or its axes are no plain names."""
    text = getattr(annotation, "dim_str", None)
    if text is None:
        return None
    axes = [axis.lstrip("#") for axis in text.split()]
    return axes if all(axis.isidentifier() or axis.isdigit() for axis in axes) else None


def _made_up_tensor(annotation, axes: dict[str, int]) -> Tensor:
    for axis in _axes(annotation):
        axes.setdefault(axis, int(axis) if axis.isdigit() else AXIS_SIZES[len(axes) % len(AXIS_SIZES)])
    shape = [axes[axis] for axis in _axes(annotation)]
    if any("bool" in dtype for dtype in annotation.dtypes):
        return torch.ones(shape, dtype=torch.bool)
    if all("int" in dtype for dtype in annotation.dtypes):
        return torch.zeros(shape, dtype=torch.long)
    return torch.linspace(0.1, 0.9, math.prod(shape)).reshape(shape)


def _name_axes(value, axes: dict[int, str]) -> str | None:
    if isinstance(value, tuple):
        parts = [_name_axes(part, axes) for part in value]
        return None if None in parts else ", ".join(dict.fromkeys(parts))
    if isinstance(value, int | float):
        return SCALAR
    if not isinstance(value, Tensor) or not all(size in axes or size == 1 for size in value.shape):
        return None
    return " ".join(axes.get(size, "1") for size in value.shape) or SCALAR
