"""Run a function on the cases of an exercise, and record what it does on each as an outcome.

A student's function runs under a guard, which returns from it in spite of an endless loop, endless printing or
`sys.exit`, on every system. The limit is on CPU time, and Python code alone can be stopped. Code that sleeps, waits for
input or stays inside a C function goes on until the student interrupts the notebook. `os._exit` and a crash end the
process. The grading therefore runs each submission in its own process and measures the time from outside.
"""

import inspect
import io
import random
import signal
import threading
import time
import traceback
import warnings
from _thread import interrupt_main
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from grpo_lab.base.checks import check_choice
from grpo_lab.base.process_state import SEED_STRIDE
from grpo_lab.course.checking.cell_history import is_from_library
from grpo_lab.course.checking.outcome import (
    RESULT,
    Fault,
    Outcome,
    as_plain_data,
    equal_data,
    equal_outcomes,
    tensors_in,
)
from grpo_lab.course.checking.signature import signature_fault
from grpo_lab.course.exercise import Exercise

MAX_CASE_SECONDS = 3.0  # CPU time for one case
CUT_OFF = "cut off from its gradient"  # the new value of an argument on which detach_ or requires_grad_ was called
UNUSABLE_RESULT = "the check could not use its result: "  # begins the message of an error in handling the result
MAX_SHOWN_LENGTH = 1_500  # characters of the printed output that are kept
MAX_PRINTED_LENGTH = 10_000_000  # characters after which a call counts as endless


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
        outcomes.append(guarded(partial(outcome_of, function, exercise, index, seed), case_seconds))
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
    result: Any, exercise: Exercise, bound: inspect.BoundArguments, arguments_before: dict, leaves: dict, seed: int
) -> Outcome:
    try:
        arguments_after = as_plain_data(dict(bound.arguments))
        changed = {name: v for name, v in arguments_after.items() if not equal_data(arguments_before[name], v, 0.0)}
        changed |= {name: CUT_OFF for name in leaves if not bound.arguments[name].requires_grad}
        compared = exercise.observations(result, bound.args, bound.kwargs) if exercise.observations else result
        differentiable = [leaf for leaf in tensors_in(compared) if leaf.is_floating_point() and leaf.requires_grad]
        results = as_plain_data(compared if exercise.observations else {RESULT: compared})
        return Outcome(results, _gradients(differentiable, leaves, seed), bool(differentiable), changed)
    except Exception as error:  # `observations` or autograd cannot handle the result
        return Outcome(
            error=type(error).__name__, message=f"{UNUSABLE_RESULT}{type(error).__name__}: {_shortened_message(error)}"
        )


def case_arguments(exercise: Exercise, index: int, seed: int) -> inspect.BoundArguments:
    """Return the arguments of case `index`, drawn from the seed, by the names of the reference's parameters."""
    args, kwargs = exercise.cases[index].build(seed)
    return inspect.signature(exercise.function).bind(*args, **kwargs)


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
    if not isinstance(function, FunctionType) or is_from_library(function):
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


@dataclass(frozen=True, eq=False)
class Attempt:
    """The outcomes of an answer on the cases of an exercise, with the inputs of one seed.

    Attributes:
        exercise: The exercise.
        outcomes: The outcomes of the answer in the order of the cases. Those after a case that was stopped are missing.
        seed: The seed from which the inputs were drawn.
    """

    exercise: Exercise
    outcomes: Sequence[Outcome]
    seed: int

    @property
    def expected(self) -> tuple[Outcome, ...]:
        """The outcomes of the reference on all cases."""
        return expected_outcomes(self.exercise, self.seed)

    @cached_property
    def failing_cases(self) -> list[int]:
        """The indices of the cases on which the answer is wrong; cases without an outcome are left out."""
        pairs = zip(self.outcomes, self.expected, strict=False)
        return [index for index, (got, right) in enumerate(pairs) if not equal_outcomes(got, right, self.exercise)]

    @property
    def ordinary_cases(self) -> list[int]:
        """The indices of the cases for values, whose inputs are not extreme."""
        return [index for index, case in enumerate(self.exercise.cases) if case.tested_property == "values"]


class Stop(BaseException):
    """An exception that stops a call. It is raised again until the call ends, so catching it does not help the call."""


def guarded(call: Callable[[], Outcome], seconds: float) -> Outcome:
    """Return the outcome that `call()` returns, with the beginning of what it printed.

    The call is stopped after this many seconds of CPU time; then the outcome has the fault `ENDLESS`, and `EXIT` if the
    call ends the program. Ordinary exceptions of the call are passed on.
    """
    output = _Output()
    result = Outcome(fault=Fault.EXIT)
    with redirect_stdout(output), redirect_stderr(output), _time_limit(seconds) as is_over:
        with suppress(Stop, SystemExit, GeneratorExit):
            result = call()
    if is_over.is_set() or output.length > MAX_PRINTED_LENGTH:
        result = Outcome(fault=Fault.ENDLESS)
    ellipsis = f"\n… and {output.length - MAX_SHOWN_LENGTH} more characters" if output.length > MAX_SHOWN_LENGTH else ""
    return replace(result, printed=output.getvalue() + ellipsis)


class _Output(io.StringIO):
    """A text stream that keeps the beginning of what is written to it, and raises `Stop` once that is too much."""

    length = 0  # the number of all characters written so far

    def write(self, text: str) -> int:
        super().write(text[: max(0, MAX_SHOWN_LENGTH - self.length)])
        self.length += len(text)
        if self.length > MAX_PRINTED_LENGTH:
            raise Stop
        return len(text)


@contextmanager
def _time_limit(seconds: float) -> Iterator[threading.Event]:
    """Raise `Stop` in the main thread once the block has used its CPU time. In any other thread there is no limit.

    The event that is yielded is then set. A second thread watches the time and sends the main thread a signal, whose
    handler raises `Stop`.
    """
    is_over = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield is_over
        return
    is_running = True
    finished = threading.Event()
    end = time.process_time() + seconds

    def watch() -> None:
        while not finished.wait(0.05):
            if time.process_time() > end:
                interrupt_main(signal.SIGTERM)  # Windows has SIGTERM, too

    def stop_call(*_) -> None:
        if is_running:
            is_over.set()
            raise Stop

    previous_handler = signal.signal(signal.SIGTERM, stop_call)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield is_over
    finally:
        is_running = False
        finished.set()
        watcher.join()
        signal.signal(signal.SIGTERM, previous_handler)
