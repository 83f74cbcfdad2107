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
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate
from statistics import median

import torch
from torch.utils.flop_counter import FlopCounterMode

from grpo_lab.base.checks import InputError
from grpo_lab.bench.process import peak_memory
from grpo_lab.bench.record import OURS, PHASE_LABELS, MachineRates, PhaseResult, RunResult, RunSpec
from grpo_lab.config import GRPOConfig
from grpo_lab.config.defaults import default_settings, is_tiny
from grpo_lab.config.precision import PRECISIONS
from grpo_lab.memory import fit_to_memory
from grpo_lab.models import keep_freed_memory_unless_tiny, load_policy
from grpo_lab.rewards.named import find_rewards
from grpo_lab.tasks import TASKS
from grpo_lab.train.engines import OurEngine
from grpo_lab.train.trl.engine import TrlEngine
from grpo_lab.trainer import PolicyOptimizer, collect, update
from grpo_lab.trainer.metrics import Clock
from grpo_lab.trainer.run.inputs import RunInputs

EXTRA_STEPS = 20  # number of steps that may be skipped because no rewards differ
# Number of times that all weights, or as many numbers, are read or written. A backward pass accesses the weights once
# and the gradients twice. An optimizer step reads four tensors for Adam, writes three of them, and accesses the
# gradients three times for their norm.
BACKWARD_ACCESSES, OPTIMIZER_ACCESSES = 3, 10


def measure_run(spec: RunSpec) -> RunResult:
    """Train the model on sums, and measure the time and the reward of each step and the peak memory.

    On a GPU, a step ends when its metrics have reached the CPU, and the memory counts torch's tensors instead of the
    process.
    """
    engine = OurEngine() if spec.engine == OURS else TrlEngine()
    inputs = _run_inputs(spec)
    engine.check(inputs.config)
    inputs.check_without_weights()
    cpu_times = [time.process_time()]  # CPU time, which other processes change little
    steps = engine.run(inputs, callback=lambda *_: cpu_times.append(time.process_time()))
    return RunResult(
        seconds=list(accumulate(step["step_time"] for step in steps)),
        cpu_seconds=[end - cpu_times[0] for end in cpu_times[1:]],
        reward=[step["reward"] for step in steps],
        peak_memory=torch.cuda.max_memory_allocated() if spec.setup.device == "cuda" else peak_memory(),
    )


def _run_inputs(spec: RunSpec) -> RunInputs:
    """Load the model, and return it with sums, the reward for a right answer and the settings of `grpo_lab.train`."""
    setup = spec.setup
    model, tokenizer = load_policy(setup.model, device=setup.device, precision=setup.precision)
    task = TASKS["sums" if is_tiny(model.num_parameters()) else "short-sums"]
    settings = default_settings(model.num_parameters(), task, setup.device)
    settings |= {"seed": spec.seed, "max_steps": setup.steps, "precision": setup.precision}
    config = GRPOConfig(disable_tqdm=True, **settings)
    rows = task.rows("train", None, config.seed)
    (accuracy,) = find_rewards(task.reward_funcs[:1])
    inputs = RunInputs(model, tokenizer, rows, accuracy, config)
    if setup.device == "cpu" and spec.engine == OURS:  # the memory plan does not hold for TRL
        keep_freed_memory_unless_tiny(model)
        fitted_config, _ = fit_to_memory(inputs, torch.device("cpu"))
        return replace(inputs, config=fitted_config)
    return inputs


class ProfiledOptimizer(PolicyOptimizer):
    """An optimizer that records its phases with a clock, and may skip the update of a step."""

    clock: Clock  # set before each step
    skips_update: bool  # set before each step

    def backward(self, loss):
        with self.clock("backward"):
            super().backward(loss)

    def step(self, lr, loss):
        if self.skips_update:
            self.adamw.zero_grad()
            return 0.0
        with self.clock("optimizer"):
            return super().step(lr, loss)


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


@dataclass(frozen=True)
class StepProfile:
    """The measurements of one step.

    seconds: CPU seconds of each phase.
    flops: Operations of the matrix products of each phase.
    passes: Forward passes of the layers in each phase.
    rates: The rates of the machine before the step is timed.
    """

    seconds: dict[str, float]
    flops: dict[str, float]
    passes: dict[str, float]
    rates: MachineRates


class StepProfiler:
    """A profiler of the steps of a run of our own loop: it first counts the operations of a step, and then times it."""

    def __init__(self, inputs: RunInputs):
        self.inputs = inputs
        self.optimizer = ProfiledOptimizer(inputs.model, inputs.config)
        self.forward_passes = 0
        inputs.model.base_model.register_forward_pre_hook(self._count_forward_pass)

    def _count_forward_pass(self, *_) -> None:
        self.forward_passes += 1

    def profile(self, step: int, matmul_dtype: torch.dtype) -> StepProfile:
        """Count the operations of a step, measure the rates of the machine, then time the step."""
        device = self.inputs.model.device
        with FlopCounterMode(display=False) as counter:
            counts = TwoClocks(device, counter.get_total_flops, lambda: self.forward_passes)
            self._run_step(step, counts, skips_update=True)
        rates_before_step = measure_rates(matmul_dtype)
        seconds = Clock(device, time.process_time)
        self._run_step(step, seconds, skips_update=False)
        return StepProfile(_by_phase(seconds), _by_phase(counts), _by_phase(counts.second), rates_before_step)

    def _run_step(self, step: int, clock: Clock, *, skips_update: bool) -> None:
        torch.manual_seed(step)
        self.optimizer.clock, self.optimizer.skips_update = clock, skips_update
        inputs, config = self.inputs, self.inputs.config
        first = step * config.prompts_per_step
        with clock("rest"):
            rows = [inputs.dataset[index] for index in range(first, first + config.prompts_per_step)]
            experience, _ = collect(inputs.model, inputs.tokenizer, rows, inputs.reward_funcs, config, clock)
            update(inputs.model, self.optimizer, experience, config, config.learning_rate, clock)


def measure_phases(spec: RunSpec) -> PhaseResult:
    """Measure the phases of a step: their CPU seconds, their operations, and the bytes that they read and write.

    Each step runs twice with the same weights, problems and random numbers. The first time its operations are counted
    and the update is skipped; the second time it is timed. The first step is left out, and so are steps in which no
    rewards differ, because they have nothing to score and no backward pass. The machine's rates are measured before
    each step, since they vary with its load as the seconds do.

    spec: The run whose first steps are measured; `setup.steps` is their number, with the one that is left out.

    Returns:
        The medians over the steps.
    """
    setup = spec.setup
    precision = PRECISIONS[setup.precision]
    matmul_dtype = precision.autocast or precision.weights
    inputs = _run_inputs(spec)
    profiler = StepProfiler(inputs)
    profiles: list[StepProfile] = []
    for step in range(setup.steps + EXTRA_STEPS):
        profile = profiler.profile(step, matmul_dtype)
        if step > 0 and profile.flops["time/logprobs"] > 0:
            profiles.append(profile)
        if len(profiles) == setup.steps - 1:
            break
    if not profiles:
        problem = f"is {setup.model!r}, whose completions had equal rewards in all groups of {step + 1} steps"
        expected = "expected a model that is right in some completions of a problem and wrong in others"
        raise InputError("model", setup.model, expected, problem=problem)
    passes = _medians([profile.passes for profile in profiles])
    accesses = passes | {"backward": BACKWARD_ACCESSES * passes["time/logprobs"], "optimizer": OPTIMIZER_ACCESSES}
    weight_bytes = sum(p.numel() * p.element_size() for p in inputs.model.parameters())
    return PhaseResult(
        seconds=_medians([profile.seconds for profile in profiles]),
        flops=_medians([profile.flops for profile in profiles]),
        bytes={name: accesses[name] * weight_bytes for name in PHASE_LABELS},
        products=str(matmul_dtype).removeprefix("torch."),
        rates=MachineRates(**_medians([asdict(profile.rates) for profile in profiles])),
        processor=f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
    )


def measure_rates(dtype: torch.dtype = torch.float32, size: int = 2048, num_copied: int = 2**26) -> MachineRates:
    """Measure the operations per second of a matrix product, and the bytes per second that a copy reads and writes.

    dtype: The precision of the product.
    size: Rows and columns of the matrices.
    num_copied: Number of float32 values that are copied.
    """
    (a, b), (source, target) = torch.randn(2, size, size).to(dtype), (torch.ones(num_copied), torch.ones(num_copied))
    repeat = partial(timeit.repeat, timer=time.process_time, number=1)
    return MachineRates(
        flops=2 * size**3 / min(repeat(lambda: a @ b)),
        bytes=2 * source.nbytes / min(repeat(lambda: target.copy_(source))),
    )
