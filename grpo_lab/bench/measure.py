"""The measurements: a whole run, by our own loop or by TRL; or a step of our own loop, phase by phase.

Each measurement runs in its own process. Two runs are comparable because the engines give both the same model,
precision, order of problems and learning rate at each update, and time the steps in the same way (tests/train). The
engines differ in what they do inside a step.
"""

import platform
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from statistics import median
from typing import NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from grpo_lab.base.checks import InputError
from grpo_lab.bench.process import peak_memory
from grpo_lab.bench.tables import PHASE_LABELS
from grpo_lab.config import GRPOConfig
from grpo_lab.config.defaults import default_settings, is_tiny
from grpo_lab.config.precision import PRECISIONS
from grpo_lab.memory import fit_to_memory
from grpo_lab.models import keep_freed_memory_unless_tiny, load_policy
from grpo_lab.rewards.named import find_rewards
from grpo_lab.tasks import TASKS, Row
from grpo_lab.train.engines.engine import OurEngine, TrlEngine
from grpo_lab.trainer import PolicyOptimizer, collect, update
from grpo_lab.trainer.clock import Clock
from grpo_lab.trainer.run.inputs import RunInputs

EXTRA_STEPS = 20  # number of steps that may be skipped because no rewards differ
# Number of times that all weights, or as many numbers, are read or written. A backward pass accesses the weights once
# and the gradients twice. An optimizer step reads four tensors for Adam, writes three of them, and accesses the
# gradients three times for their norm.
BACKWARD_ACCESSES, OPTIMIZER_ACCESSES = 3, 10


def measure_run(spec: dict) -> dict:
    """Train the model on sums, and return the time and reward of each step and the peak memory.

    On a GPU, a step ends when its metrics have reached the CPU, and the memory counts torch's tensors instead of the
    process.

    Args:
        spec: "trainer" is "ours" or "trl"; the other entries are those of `_run_arguments`.

    Returns:
        "seconds" and "cpu_seconds" are lists with the time from the start to the end of each step; "reward" is a list
        with the mean reward of each step; "peak_memory" is a number of bytes.
    """
    engine = OurEngine() if spec["trainer"] == "ours" else TrlEngine()
    cpu_times = [time.process_time()]  # CPU time, which other processes change little
    steps = engine.run(RunInputs(*_run_arguments(spec)), callback=lambda *_: cpu_times.append(time.process_time()))
    return {
        "seconds": list(accumulate(step["step_time"] for step in steps)),
        "cpu_seconds": [end - cpu_times[0] for end in cpu_times[1:]],
        "reward": [step["reward"] for step in steps],
        "peak_memory": torch.cuda.max_memory_allocated() if spec["device"] == "cuda" else peak_memory(),
    }


def _run_arguments(spec: dict) -> tuple:
    """Return model, tokenizer, problems, the reward for a right answer, and the settings that `grpo_lab.train` chooses.

    spec: "model", "device" and "precision" as for `load_policy`; "seed"; "steps", the number of steps of the run; and
        "trainer", "ours" or "trl" (default "ours").
    """
    model, tokenizer = load_policy(spec["model"], device=spec["device"], precision=spec["precision"])
    task = TASKS["sums" if is_tiny(model.num_parameters()) else "short-sums"]
    settings = default_settings(model.num_parameters(), task, spec["device"])
    settings |= {"seed": spec["seed"], "max_steps": spec["steps"], "precision": spec["precision"]}
    config = GRPOConfig(disable_tqdm=True, **settings)
    rows = task.rows("train", None, config.seed)
    if spec["device"] == "cpu" and spec.get("trainer", "ours") == "ours":  # the memory plan does not hold for TRL
        keep_freed_memory_unless_tiny(model)
        config, _ = fit_to_memory(model.config, tokenizer, rows, config, torch.device("cpu"))
    return model, tokenizer, rows, find_rewards(task.reward_funcs[:1])[0], config


class TimedOptimizer(PolicyOptimizer):
    """An optimizer that records its phases with a clock."""

    clock: Clock  # set before each step

    def backward(self, loss):
        with self.clock("backward"):
            super().backward(loss)

    def step(self, lr, loss):
        with self.clock("optimizer"):
            return super().step(lr, loss)


class CountingOptimizer(TimedOptimizer):
    """An optimizer that computes the gradients of a step and skips the update.

    optimizer: The optimizer whose moments and loss scale it shares, so that they are in memory only once.
    """

    def __init__(self, optimizer: TimedOptimizer):
        vars(self).update(vars(optimizer))  # no `super().__init__`, which would allocate the moments a second time

    def step(self, lr, loss):
        self.adamw.zero_grad()
        return 0.0


class TwoClocks(Clock):
    """A clock that records two quantities for each phase; the second one is recorded in the clock `second`."""

    def __init__(self, device: torch.device, read: Callable[[], float], read_second: Callable[[], float]):
        super().__init__(device, read)
        self.second = Clock(device, read_second)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        with self.second(name), super().__call__(name):
            yield


def _by_phase(clock: Clock) -> dict[str, float]:
    """Return the amount that a clock has recorded in each phase of `PHASE_LABELS`; "rest" contains all other phases."""
    other_phases = sum(amount for name, amount in clock.totals.items() if name not in PHASE_LABELS)
    return {name: clock.totals.get(name, 0) for name in PHASE_LABELS} | {"rest": other_phases + clock.totals["rest"]}


def _medians(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: median(values[name] for values in steps) for name in steps[0]}


class StepValues(NamedTuple):
    """The measurements of one step, by phase; `rates` are those of the machine."""

    seconds: dict[str, float]
    flops: dict[str, float]  # operations of the matrix products
    passes: dict[str, float]  # forward passes of the layers
    rates: dict[str, float]  # the values of `measure_rates` before the step is timed


class MeasuredRun:
    """The steps of a run, each of which is first counted and then timed.

    Args:
        model, tokenizer, rows, reward_func, config: The values that `_run_arguments` returns.
    """

    def __init__(self, model, tokenizer, rows: Sequence[Row], reward_func: Callable, config: GRPOConfig):
        self.model = model
        self.tokenizer = tokenizer
        self.rows = rows
        self.reward_func = reward_func
        self.config = config
        self.timed = TimedOptimizer(model, config)
        self.counting = CountingOptimizer(self.timed)
        self.forward_passes = 0
        model.base_model.register_forward_pre_hook(self._count_forward_pass)

    def _count_forward_pass(self, *_) -> None:
        self.forward_passes += 1

    def measure(self, index: int, matmul_dtype: torch.dtype) -> StepValues:
        """Count the operations of a step, measure the rates of the machine, then time the step."""
        flops, passes = self._count(index)
        clock = Clock(self.model.device, time.process_time)
        rates_before_step = measure_rates(matmul_dtype)
        self._run_step(index, self.timed, clock)
        return StepValues(_by_phase(clock), flops, passes, rates_before_step)

    def _count(self, index: int) -> tuple[dict[str, float], dict[str, float]]:
        with FlopCounterMode(display=False) as counter:
            clock = TwoClocks(self.model.device, counter.get_total_flops, lambda: self.forward_passes)
            self._run_step(index, self.counting, clock)
        return _by_phase(clock), _by_phase(clock.second)

    def _run_step(self, index: int, optimizer: TimedOptimizer, clock: Clock) -> None:
        torch.manual_seed(index)
        optimizer.clock = clock
        size, config = self.config.prompts_per_step, self.config
        with clock("rest"):
            batch = [self.rows[row] for row in range(index * size, (index + 1) * size)]
            experience, _ = collect(self.model, self.tokenizer, batch, self.reward_func, config, clock)
            update(self.model, optimizer, experience, config, config.learning_rate, clock)


def measure_phases(spec: dict) -> dict:
    """Measure the phases of a step: their CPU seconds, their operations, and the bytes that they read and write.

    Each step runs twice with the same weights, problems and random numbers. The first time its operations are counted
    and the update is skipped; the second time it is timed. The first step is left out, and so are steps in which no
    rewards differ, because they have nothing to score and no backward pass. The machine's rates are measured before
    each step, since they vary with its load as the seconds do.

    Args:
        spec: The entries of `_run_arguments`; "steps" is the number of steps to measure, with the first.

    Returns:
        "seconds", "flops" and "bytes" give the median over the steps for each phase of `PHASE_LABELS`; "products" is
        the precision of the matrix products; "rates" are the medians of `measure_rates`; "processor" describes the CPU.
    """
    model, *other_arguments = _run_arguments(spec)
    precision = PRECISIONS[spec["precision"]]
    matmul_dtype = precision.autocast or precision.weights
    run = MeasuredRun(model, *other_arguments)
    measured_steps: list[StepValues] = []
    for index in range(spec["steps"] + EXTRA_STEPS):
        values = run.measure(index, matmul_dtype)
        if index > 0 and values.flops["time/logprobs"] > 0:
            measured_steps.append(values)
        if len(measured_steps) == spec["steps"] - 1:
            break
    if not measured_steps:
        problem = f"is {spec['model']!r}, whose completions had equal rewards in all groups of {index + 1} steps"
        expected = "expected a model that is right in some completions of a problem and wrong in others"
        raise InputError("model", spec["model"], expected, problem=problem)
    seconds, flops, passes, median_rates = map(_medians, zip(*measured_steps, strict=True))
    accesses = passes | {"backward": BACKWARD_ACCESSES * passes["time/logprobs"], "optimizer": OPTIMIZER_ACCESSES}
    weight_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    return {
        "seconds": seconds,
        "flops": flops,
        "bytes": {name: accesses[name] * weight_bytes for name in PHASE_LABELS},
        "products": str(matmul_dtype).removeprefix("torch."),
        "rates": median_rates,
        "processor": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
    }


def measure_rates(dtype: torch.dtype = torch.float32, size: int = 2048, num_copied: int = 2**26) -> dict:
    """Measure the operations per second of a matrix product, and the bytes per second that a copy reads and writes.

    Args:
        dtype: The precision of the product.
        size: Rows and columns of the matrices.
        num_copied: Number of float32 values that are copied.

    Returns:
        {"flops": operations per second, "bytes": bytes per second}.
    """
    (a, b), (source, target) = torch.randn(2, size, size).to(dtype), (torch.ones(num_copied), torch.ones(num_copied))
    repeat = partial(timeit.repeat, timer=time.process_time, number=1)
    return {
        "flops": 2 * size**3 / min(repeat(lambda: a @ b)),
        "bytes": 2 * source.nbytes / min(repeat(lambda: target.copy_(source))),
    }
