"""Answers with a fault of form, made from a right answer: the numbers are right, and something else is not.

Faults that do not depend on the exercise are tested elsewhere: what the guard stops in checking/test_run_cases.py, and
a wrong signature in checking/test_signature.py.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from grpo_lab.course.checking.difference import may_be_none
from grpo_lab.course.checking.outcome import tensors_in
from grpo_lab.course.checking.run_cases import case_arguments, expected_outcomes
from grpo_lab.course.exercise import Exercise
from tests.course.small_exercise import copy_of


def faults_of_form(exercise: Exercise) -> dict[str, Callable]:
    """Return an answer with each fault that is possible in an exercise, by the name that `Verdict.fault` has."""
    expected = expected_outcomes(exercise, 0)
    plain = exercise.observations is None and isinstance(expected[0].value, Tensor)
    changes: dict[str, Callable] = {}
    if plain:
        changes["shape"] = lambda result, arguments: result[None]
        changes["dtype"] = lambda result, arguments: result.to(torch.float16)
    if exercise.observations is None:
        # If None may be an answer, a wrong None is no fault of form, and a list is returned instead.
        changes["kind"] = lambda result, arguments: [result, 0] if may_be_none(exercise) else None
    if plain and any(outcome.has_gradient for outcome in expected):
        changes["detached"] = lambda result, arguments: result.detach()
    tensors_of_cases = [
        tensors_in(list(case_arguments(exercise, i, 0).arguments.values())) for i in range(len(exercise.cases))
    ]
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
        for tensor in tensors_in(arguments):
            if tensor.is_floating_point():
                tensor.data = tensor.data + 1.0
                tensor.data.add_(1.0)
    return result
