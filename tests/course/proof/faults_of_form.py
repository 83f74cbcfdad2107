"""Faults of form, made out of a right answer: the numbers are right, and something else is not."""

import builtins
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from grpo_lab.course.checking.difference import may_be_none
from grpo_lab.course.checking.outcome import expected_outcomes, inputs
from grpo_lab.course.checking.plain_data import tensors
from grpo_lab.course.exercise import Exercise
from tests.course.toys import copy_of

STOPPED = ("endless", "flood", "exit", "input", "signature")  # those that the guard has to see


def faults_of_form(exercise: Exercise) -> dict[str, Callable]:
    """Name of the fault (as in `Verdict.fault`) -> an answer that has it; those that the exercise can show."""
    right, made = copy_of(exercise.function), {}
    arguments = [tensors(list(inputs(exercise, i, 0)[0].arguments.values())) for i in range(len(exercise.cases))]
    expected = expected_outcomes(exercise, 0)
    plain = exercise.observe is None and isinstance(expected[0].value, Tensor)
    if plain:
        made["shape"] = _after(right, lambda result: result[None])
        made["dtype"] = _after(right, _other_dtype)
    if exercise.observe is None:
        # None itself may be an answer, and then a wrong one is no fault of form.
        made["kind"] = _after(right, (lambda result: [result, 0]) if may_be_none(exercise) else lambda result: None)
    if plain and exercise.gradient_of and any(o.attached for o in expected):
        made["detached"] = _after(right, lambda result: result.detach())
    changes = any(o.changed for o in expected)  # where the reference does so, too, it is no fault of form
    if not changes and any(t.is_floating_point() and t.numel() for found in arguments for t in found):
        made["inplace"] = _changing_its_input(right)
    return made | {
        "endless": _before(right, _endless), "flood": _before(right, _flood), "exit": _before(right, _exit),
        "input": _before(right, _ask), "signature": lambda *anything: None,
    }  # fmt: skip


def _after(right: Callable, change: Callable[[Any], Any]) -> Callable:
    @functools.wraps(right)
    def answer(*args, **kwargs):
        return change(right(*args, **kwargs))

    return answer


def _before(right: Callable, act: Callable[[], Any]) -> Callable:
    @functools.wraps(right)
    def answer(*args, **kwargs):
        act()
        return right(*args, **kwargs)

    return answer


def _changing_its_input(right: Callable) -> Callable:
    @functools.wraps(right)
    def answer(*args, **kwargs):
        result = right(*args, **kwargs)
        found = tensors([*args, *kwargs.values()])
        with torch.no_grad():
            for tensor in found:
                if tensor.is_floating_point():
                    tensor.data = tensor.data + 1.0
                    tensor.data.add_(1.0)
        return result

    return answer


def _other_dtype(result: Tensor) -> Tensor:
    return result.to(torch.float32 if result.dtype != torch.float32 else torch.float64)


def _endless() -> None:
    while True:
        pass


def _flood() -> None:
    while True:
        builtins.print("all work and no play")


def _ask() -> None:
    builtins.input()


def _exit() -> None:
    sys.exit(0)
