"""The measurements, each in a process of its own: a whole run, by our own loop or by TRL; or our step, phase by phase.

What makes two runs comparable is what the engine keeps alike (tests/train/engines): model, precision, problems in their
order, learning rate at each update, and the times of the steps. What each does inside a step is its own affair.
"""

import platform
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from statistics import median

import torch
from torch.utils.flop_counter import FlopCounterMode

from grpo_lab.bench.process import peak_memory
from grpo_lab.bench.tables import PHASES
from grpo_lab.config import GRPOConfig
from grpo_lab.config.defaults import FEW_PARAMETERS, default_settings
from grpo_lab.config.precision import PRECISIONS
from grpo_lab.memory import fit_to_cpu
from grpo_lab.models import keep_freed_memory_if_large, load_policy
from grpo_lab.rewards.named import find_rewards
from grpo_lab.tasks import TASKS
from grpo_lab.train.engines.engine import OurEngine, TrlEngine
from grpo_lab.trainer import PolicyOptimizer, collect, update
from grpo_lab.trainer.metrics import Clock

STEPS_TRIED = 20  # beyond those that are measured, where some have no rewards that differ
BACKWARD, OPTIMIZER = 3, 10  # times over all weights: weights, gradient twice; Adam's four, three of them written, norm


def whole_run(spec: dict) -> dict:
    """Train the model on sums; the time and the reward of each step, and the memory.

    On a GPU a step ends when its numbers are there, and the memory is that of torch's tensors, not of the process.
    """
    engine = OurEngine() if spec["trainer"] == "ours" else TrlEngine()
    cpu = [time.process_time()]  # the processor's own seconds: other work changes them little
    steps = engine.run(*_setting(spec), callback=lambda *_: cpu.append(time.process_time()))
    return {
        "seconds": list(accumulate(step["step_time"] for step in steps)),
        "cpu_seconds": [end - cpu[0] for end in cpu[1:]],
        "reward": [step["reward"] for step in steps],
        "peak_memory": torch.cuda.max_memory_allocated() if spec["device"] == "cuda" else peak_memory(),
    }


def _setting(spec: dict) -> tuple:
    """Model, tokenizer, problems, the reward for a right answer, and settings as `grpo_lab.train` chooses them."""
    model, tokenizer = load_policy(spec["model"], device=spec["device"], precision=spec["precision"])
    task = TASKS["sums" if model.num_parameters() < FEW_PARAMETERS else "short-sums"]
    settings = default_settings(model.num_parameters(), task, spec["device"])
    settings |= {"seed": spec["seed"], "max_steps": spec["steps"], "precision": spec["precision"]}
    config = GRPOConfig(disable_tqdm=True, **settings)
    rows = task.rows("train", None, config.seed)
    if spec["device"] == "cpu" and spec.get("trainer", "ours") == "ours":  # TRL has another plan of its memory
        keep_freed_memory_if_large(model)
        config, _ = fit_to_cpu(model.config, tokenizer, rows, config, spec["precision"])
    return model, tokenizer, rows, find_rewards(task.reward_funcs[:1])[0], config


class TimedOptimizer(PolicyOptimizer):
    """An optimizer whose phases are read by a clock. While it only counts, it drops the gradient instead of a step."""

    clock = None
    only_counts = False

    def backward(self, loss):
        with self.clock("backward"):
            super().backward(loss)

    def step(self, lr, loss):
        if self.only_counts:
            self.adamw.zero_grad()
            return 0.0
        with self.clock("optimizer"):
            return super().step(lr, loss)


class TwoClocks(Clock):
    """A clock beside which a second one runs, which reads something else."""

    def __init__(self, device: torch.device, read: Callable[[], float], second: Callable[[], float]):
        super().__init__(device, read)
        self.second = Clock(device, second)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        with self.second(name), super().__call__(name):
            yield


def _by_phase(clock: Clock) -> dict[str, float]:
    """What a clock has read in each of `PHASES`; all other phases are part of the rest."""
    others = sum(passed for name, passed in clock.seconds.items() if name not in PHASES)
    return {name: clock.seconds.get(name, 0) for name in PHASES} | {"rest": others + clock.seconds["rest"]}


def _medians(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: median(values[name] for values in steps) for name in steps[0]}


def phases(spec: dict) -> dict:
    """Medians over the steps after the first: their seconds; and what these very steps compute and move.

    Each step is taken twice with the same weights, problems and random numbers: it is counted, without its update, then
    timed. One in which no rewards differ has nothing to score and no backward pass, and is left out. The rates are
    medians, too, measured before each step: a busy machine is slower in both.
    """
    model, tokenizer, rows, reward_func, config = _setting(spec)
    optimizer = TimedOptimizer(model, config)
    size = config.prompts_per_step
    calls = []
    model.base_model.register_forward_pre_hook(lambda *_: calls.append(1))

    def step(number: int, clock: Clock) -> None:
        torch.manual_seed(number)
        optimizer.clock = clock
        with clock("rest"):
            batch = [rows[index] for index in range(number * size, (number + 1) * size)]
            experience, _ = collect(model, tokenizer, batch, reward_func, config, clock)
            update(model, optimizer, experience, config, config.learning_rate, clock)

    def count_step(number: int) -> tuple[dict[str, float], dict[str, float]]:
        """The operations of the products of each phase, and its forward passes of the layers."""
        optimizer.only_counts = True
        with FlopCounterMode(display=False) as counter:
            clock = TwoClocks(model.device, counter.get_total_flops, lambda: len(calls))
            step(number, clock)
        optimizer.only_counts = False
        return _by_phase(clock), _by_phase(clock.second)

    mode = PRECISIONS[spec["precision"]]
    products = mode.autocast or mode.weights
    measured = []  # a step: seconds, operations, passes, rates
    for number in range(spec["steps"] + STEPS_TRIED):
        flops, passes = count_step(number)
        clock = Clock(model.device, time.process_time)
        rates_now = rates(products)
        step(number, clock)
        if number > 0 and flops["time/logprobs"] > 0:
            measured.append((_by_phase(clock), flops, passes, rates_now))
        if len(measured) == spec["steps"] - 1:
            break
    seconds, flops, passes, rate = map(_medians, zip(*measured, strict=True))
    passes |= {"backward": BACKWARD * passes["time/logprobs"], "optimizer": OPTIMIZER}
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return {
        "seconds": seconds,
        "flops": flops,
        "bytes": {name: passes[name] * weights for name in PHASES},
        "products": str(products).removeprefix("torch."),
        "rates": rate,
        "processor": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
    }


def rates(dtype: torch.dtype = torch.float32, size: int = 2048, copied: int = 2**26) -> dict:
    """Operations per second of a product of `size` x `size` matrices; bytes per second that a copy reads and writes.

    dtype: the precision of the product, which is that of the matrix products of the run.
    """
    (a, b), (source, target) = torch.randn(2, size, size).to(dtype), (torch.ones(copied), torch.ones(copied))
    measured = {"timer": time.process_time, "number": 1}
    return {
        "flops": 2 * size**3 / min(timeit.repeat(lambda: a @ b, **measured)),
        "bytes": 2 * source.nbytes / min(timeit.repeat(lambda: target.copy_(source), **measured)),
    }
