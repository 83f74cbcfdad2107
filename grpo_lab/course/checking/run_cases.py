"""Run a function on the cases of an exercise, and record what it does on each as an outcome."""

import random
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from inspect import BoundArguments, signature
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from grpo_lab.base.checks import check_choice
from grpo_lab.base.process_state import SEED_STRIDE
from grpo_lab.course.checking.compare import equal_data
from grpo_lab.course.checking.guard import guarded
from grpo_lab.course.checking.outcome import Outcome
from grpo_lab.course.checking.plain_data import as_plain_data, tensors_in
from grpo_lab.course.checking.signature import signature_fault
from grpo_lab.course.checking.status import Fault
from grpo_lab.course.exercise import Exercise

MAX_CASE_SECONDS = 3.0  # CPU time for one case
CUT_OFF = "cut off from its gradient"  # the new value of an argument on which detach_ or requires_grad_ was called
UNUSABLE_RESULT = "the check could not use its result: "  # begins the message of an error in handling the result


def outcome_of(function: Callable, exercise: Exercise, index: int, seed: int = 0) -> Outcome:
    """Run `function` on case `index`, and return the outcome.

    An `Exception` of the function becomes part of the outcome. `SystemExit`, `KeyboardInterrupt` and the like are
    passed on.
    """
    bound = case_arguments(exercise, index, seed)
    leaves = _require_gradients(bound.arguments, exercise.gradient_of)
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


def run_student(
    function: Callable, exercise: Exercise, seed: int = 0, case_seconds: float = MAX_CASE_SECONDS
) -> list[Outcome]:
    """Run a student's function on each case in order, under a guard, and return the outcomes.

    A fault ends the list early.

    Args:
        function: The student's function. A wrong signature is a fault, and then nothing runs.
        seed: The seed from which the inputs are drawn.
        case_seconds: The CPU time that each case may take.
    """
    if message := signature_fault(function, exercise):
        return [Outcome(fault=Fault.SIGNATURE, message=message)]
    outcomes: list[Outcome] = []
    for index in range(len(exercise.cases)):
        call = guarded(partial(outcome_of, function, exercise, index, seed), case_seconds)
        outcomes.append(replace(call.result or Outcome(fault=call.fault or Fault.EXIT), printed=call.printed))
        if outcomes[-1].fault:
            break
    return outcomes


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


def case_arguments(exercise: Exercise, index: int, seed: int) -> BoundArguments:
    """Return the arguments of case `index`, drawn from the seed, by the names of the reference's parameters."""
    args, kwargs = exercise.cases[index].build(seed)
    return signature(exercise.function).bind(*args, **kwargs)


def _require_gradients(arguments: dict[str, Any], names: Sequence[str]) -> dict[str, Tensor]:
    """Replace the arguments of these names, in place, by copies that carry gradients.

    Returns:
        The leaf tensors with respect to which gradients are computed, by name. An argument that is None has none.
    """
    leaves = {}
    for name in names:
        if arguments.get(name) is not None:
            leaves[name] = arguments[name].detach().clone().requires_grad_()
            arguments[name] = leaves[name].clone()  # not a leaf, so the function may change it in place
    return leaves


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
