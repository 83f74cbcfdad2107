"""Faults of form, made out of a right answer: the numbers are right, and something else is not.

What the guard stops, whatever the exercise, is in test_guard.py; a wrong signature in test_check.py.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from grpo_lab.course.checking.difference import may_be_none
from grpo_lab.course.checking.outcome import expected_outcomes, inputs
from grpo_lab.course.checking.plain_data import tensors
from grpo_lab.course.exercise import Exercise
from tests.course.toys import copy_of


def faults_of_form(exercise: Exercise) -> dict[str, Callable]:
    """Name of the fault (as in `Verdict.fault`) -> an answer that has it; those that the exercise can show."""
    expected = expected_outcomes(exercise, 0)
    plain = exercise.observe is None and isinstance(expected[0].value, Tensor)
    changes: dict[str, Callable] = {}
    if plain:
        changes["shape"] = lambda result, arguments: result[None]
        changes["dtype"] = lambda result, arguments: result.to(torch.float16)
    if exercise.observe is None:  # None itself may be an answer, and then a wrong one is no fault of form
        changes["kind"] = lambda result, arguments: [result, 0] if may_be_none(exercise) else None
    if plain and any(outcome.has_gradient for outcome in expected):
        changes["detached"] = lambda result, arguments: result.detach()
    tensors_of_cases = [tensors(list(inputs(exercise, i, 0)[0].arguments.values())) for i in range(len(exercise.cases))]
    has_floats = any(
        tensor.is_floating_point() and tensor.numel()
        for tensors_of_case in tensors_of_cases
        for tensor in tensors_of_case
    )
    if has_floats and not any(outcome.changed_arguments for outcome in expected):
        changes["inplace"] = _changed_in_place
    return {fault: _answer(exercise, change) for fault, change in changes.items()}


def _answer(exercise: Exercise, change: Callable) -> Callable:
    right = copy_of(exercise.function)

    @functools.wraps(right)
    def answer(*args, **kwargs):
        return change(right(*args, **kwargs), [*args, *kwargs.values()])

    return answer


def _changed_in_place(result, arguments):
    with torch.no_grad():
        for tensor in tensors(arguments):
            if tensor.is_floating_point():
                tensor.data = tensor.data + 1.0
                tensor.data.add_(1.0)
    return result
