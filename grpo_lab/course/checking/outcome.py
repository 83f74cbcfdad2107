"""Run a function on a case, and record everything that is compared as an outcome."""

import random
import traceback
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from functools import cache
from inspect import BoundArguments, signature
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from grpo_lab.base.checks import check_choice
from grpo_lab.base.random_state import SEED_STRIDE
from grpo_lab.course.checking.compare import equal_data
from grpo_lab.course.checking.outcome_data import Outcome, as_plain_data, tensors_in
from grpo_lab.course.exercise import Exercise

CUT_OFF = "cut off from its gradient"  # the new value of an argument on which detach_ or requires_grad_ was called
UNUSABLE_RESULT = "the check could not use its result: "  # begins the message of an error in handling the result


def outcome_of(function: Callable, exercise: Exercise, index: int, seed: int = 0) -> Outcome:
    """Run `function` on case `index`, and return the outcome.

    An `Exception` of the function becomes part of the outcome. `SystemExit`, `KeyboardInterrupt` and the like are
    passed on.
    """
    bound, leaves = case_inputs(exercise, index, seed, with_gradients=True)
    arguments_before = as_plain_data(dict(bound.arguments))
    with _random_numbers_from(seed + index), torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the verdict explains whatever torch would warn of
        try:
            result = function(*bound.args, **bound.kwargs)
        except Exception as error:
            return Outcome(
                error=type(error).__name__, message=_shortened_message(error), trace=student_frames(error, function)
            )
        return _outcome_of_result(result, exercise, bound, arguments_before, leaves, SEED_STRIDE * seed + index)


@cache
def expected_outcomes(exercise: Exercise, seed: int = 0) -> tuple[Outcome, ...]:
    """Return the reference's outcome on every case; they are computed once for each seed.

    Raises:
        InputError: If the exercise has recorded outcomes and the seed is not 0.
    """
    if exercise.recorded_outcomes:
        check_choice("seed", seed, (0,))
        return exercise.recorded_outcomes
    return tuple(outcome_of(exercise.function, exercise, index, seed) for index in range(len(exercise.cases)))


def _outcome_of_result(
    result: Any, exercise: Exercise, bound: BoundArguments, arguments_before: dict, leaves: dict, seed: int
) -> Outcome:
    try:
        arguments_after = as_plain_data(dict(bound.arguments))
        changed = {name: v for name, v in arguments_after.items() if not equal_data(arguments_before[name], v, 0.0)}
        changed |= {name: CUT_OFF for name in leaves if not bound.arguments[name].requires_grad}
        compared = exercise.observations(result, bound.args, bound.kwargs) if exercise.observations else result
        differentiable = [leaf for leaf in tensors_in(compared) if leaf.is_floating_point() and leaf.requires_grad]
        value, observed = (None, as_plain_data(compared)) if exercise.observations else (as_plain_data(compared), None)
        return Outcome(value, _gradients(differentiable, leaves, seed), bool(differentiable), changed, observed)
    except Exception as error:  # `observations` or autograd cannot handle the result
        return Outcome(
            error=type(error).__name__, message=f"{UNUSABLE_RESULT}{type(error).__name__}: {_shortened_message(error)}"
        )


def case_inputs(
    exercise: Exercise, index: int, seed: int, with_gradients: bool = False
) -> tuple[BoundArguments, dict[str, Tensor]]:
    """Return the arguments of a case, and the leaf tensors with respect to which gradients are computed.

    Args:
        seed: The seed from which the input is drawn.
        with_gradients: Whether to prepare the arguments in `gradient_of` for gradients. Their leaf tensors are then
            returned by name; otherwise none are.
    """
    args, kwargs = exercise.cases[index].build(seed)
    bound, leaves = signature(exercise.function).bind(*args, **kwargs), {}
    for name in exercise.gradient_of if with_gradients else ():
        if bound.arguments.get(name) is not None:
            leaves[name] = bound.arguments[name].detach().clone().requires_grad_()
            bound.arguments[name] = leaves[name].clone()  # not a leaf, so the function may change it in place
    return bound, leaves


def _gradients(results: list[Tensor], leaves: dict[str, Tensor], seed: int) -> dict[str, Any]:
    """Return the gradients of a randomly weighted sum of all results, by argument; None if no gradient reaches it.

    The weights are drawn from the seed, so that they are the same for every function.
    """
    if not leaves or not results:
        return dict.fromkeys(leaves)
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(r.shape, generator=generator, dtype=torch.float64).to(r.dtype) for r in results]
    gradients = torch.autograd.grad(results, list(leaves.values()), weights, allow_unused=True)
    return {name: as_plain_data(gradient) for name, gradient in zip(leaves, gradients, strict=True)}


@contextmanager
def _random_numbers_from(seed: int):
    """Seed the random numbers of torch and Python for the length of a block, and restore both states afterwards."""
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    torch.default_generator.manual_seed(seed)  # seeds the CPU alone; torch.manual_seed would initialise GPUs
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(python_state)


def student_frames(error: BaseException, function: Callable) -> str:
    """Return the lines of the student's own file on the way to the exception; "" for a function of the library."""
    if not isinstance(function, FunctionType) or str(function.__module__).startswith("grpo_lab."):
        return ""
    student_file = function.__code__.co_filename
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == student_file]
    displayed = frames if len(frames) <= 4 else [*frames[:2], *frames[-2:]]
    return "\n".join(f"line {frame.lineno}, in {frame.name}: {frame.line}" for frame in displayed)


def _shortened_message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        return ""
    return text if len(text) <= 400 else text[:400] + " …"
