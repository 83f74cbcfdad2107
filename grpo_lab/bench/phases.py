"""Where the time of one step goes, phase by phase, beside the least that this processor needs for it.

The bound of a phase is the longer of two times: that of its matrix products (without attention's) at the rate of one
large product, and that of its weights, gradients and moments at the rate of one large copy. Seconds are the processor's
own, on one thread.
"""

import platform
import statistics
import time
from contextlib import contextmanager

import torch
from torch.utils.flop_counter import FlopCounterMode

from grpo_lab.bench.process import worker_main
from grpo_lab.bench.train_worker import setting
from grpo_lab.commands.display import text_table
from grpo_lab.trainer import PolicyOptimizer, collect, update
from grpo_lab.trainer.metrics import Clock

PHASES = {
    "time/rollout": "rollout", "time/logprobs": "log-probabilities", "backward": "backward", "optimizer": "optimizer",
    "rest": "rest",
}  # fmt: skip
BACKWARD, OPTIMIZER = 3, 10  # times over all weights: weights, gradient twice; Adam's four, three of them written, norm


class Phases(Clock):
    """A clock that reads something else than the time of day, and knows the phases of the table."""

    def __init__(self, read):
        self.read, self.seconds, self._inner = read, dict.fromkeys(PHASES, 0.0), 0.0

    @contextmanager
    def __call__(self, name: str):
        outer, self._inner, began = self._inner, 0.0, self.read()
        yield
        passed = self.read() - began
        self.seconds[name if name in PHASES else "rest"] += passed - self._inner
        self._inner = outer + passed


class TimedOptimizer(PolicyOptimizer):
    clock = None

    def backward(self, loss):
        with self.clock("backward"):
            super().backward(loss)

    def step(self, lr, loss):
        with self.clock("optimizer"):
            return super().step(lr, loss)


def measure(spec: dict) -> dict:
    """Medians over the steps after the first; then what one more step computes and moves."""
    model, tokenizer, config, rows, right = setting(spec)
    optimizer, size, calls = TimedOptimizer(model, config), config.prompts_per_step, []
    model.base_model.register_forward_pre_hook(lambda *_: calls.append(1))

    def step(number, read):
        torch.manual_seed(number)
        clock = optimizer.clock = Phases(read)
        with clock("rest"):
            some = [rows[place] for place in range(number * size, (number + 1) * size)]
            experience, _ = collect(model, tokenizer, some, right, config, clock)
            update(model, optimizer, experience, config, config.learning_rate, clock)
        return clock.seconds

    taken = [step(number, time.process_time) for number in range(spec["steps"])][1:]
    with FlopCounterMode(display=False) as counter:
        flops = step(spec["steps"], counter.get_total_flops)
    passes = step(spec["steps"] + 1, lambda: len(calls))
    passes |= {"backward": BACKWARD * passes["time/logprobs"], "optimizer": OPTIMIZER}
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return {
        "seconds": {name: statistics.median(found[name] for found in taken) for name in PHASES},
        "flops": {name: flops[name] for name in PHASES},
        "bytes": {name: passes[name] * weights for name in PHASES},
        "rates": rates(),
        "processor": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
    }


def rates(size: int = 2048, copied: int = 2**26) -> dict:
    """Operations a second of one product of `size` x `size` matrices, and bytes a second read and written by a copy."""
    a, b, source, target = torch.randn(size, size), torch.randn(size, size), torch.ones(copied), torch.ones(copied)
    return {
        "flops": 2 * size**3 / _least_seconds(lambda: a @ b),
        "bytes": 2 * source.nbytes / _least_seconds(lambda: target.copy_(source)),
    }


def _least_seconds(call, times: int = 5) -> float:
    taken = []
    for _ in range(times):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return min(taken)


def table(measured: dict) -> str:
    """A line a phase, and the whole step."""
    rate, rows, total = measured["rates"], [], [0.0, 0.0]
    for name, label in PHASES.items():
        seconds, flops, size = (measured[key][name] for key in ("seconds", "flops", "bytes"))
        bound = max(flops / rate["flops"], size / rate["bytes"])
        rows.append([label, f"{seconds:.3f}", f"{flops / 1e9:.1f}", f"{size / 1e9:.2f}", f"{bound:.3f}"])
        total = [total[0] + seconds, total[1] + bound]
    rows.append(["a step", f"{total[0]:.3f}", "", "", f"{total[1]:.3f}"])
    lead = (
        f"{measured['processor']}, one thread: {rate['flops'] / 1e9:.0f} GFLOP/s in one large product, "
        f"{rate['bytes'] / 1e9:.0f} GB/s in one large copy"
    )
    return f"{lead}\n{text_table(['', 'CPU s', 'GFLOP', 'GB', 'bound, s'], rows)}"


if __name__ == "__main__":
    worker_main(measure)
