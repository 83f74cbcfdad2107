"""The record of a benchmark: the setup of its runs, their results, the machine, and the file that holds them."""

import json
import platform
from dataclasses import dataclass
from pathlib import Path

from grpo_lab.base.commands import installed_version
from grpo_lab.base.display import text_table
from grpo_lab.base.files import write_atomically

OURS, TRL = "ours", "trl"  # the engines, as a record of a benchmark names them


@dataclass(frozen=True)
class Setup:
    """The setup that all runs of a benchmark share.

    model: A name as `load_policy` takes it.
    precision: One of `PRECISIONS`.
    device: "cpu" or "cuda".
    steps: Number of steps of a run.
    threads: Number of torch's threads; None leaves it to torch.
    """

    model: str
    precision: str
    device: str
    steps: int
    threads: int | None


@dataclass(frozen=True)
class RunSpec:
    """The specification of one run: its setup, its seed, and its engine, `OURS` or `TRL`."""

    setup: Setup
    seed: int
    engine: str = OURS


# The phases of a step, and the name of each in a table.
PHASE_LABELS = {
    "time/rollout": "rollout", "time/logprobs": "log-probabilities", "backward": "backward", "optimizer": "optimizer",
    "rest": "rest",
}  # fmt: skip


@dataclass(frozen=True)
class RunResult:
    """The measurements of a whole run.

    seconds: The time from the start of the run to the end of each step.
    cpu_seconds: The CPU time of this process, also to the end of each step.
    reward: The mean reward of each step.
    peak_memory: Bytes.
    """

    seconds: list[float]
    cpu_seconds: list[float]
    reward: list[float]
    peak_memory: int


@dataclass(frozen=True)
class MachineRates:
    """The speed of a machine.

    flops: Operations per second of a large matrix product.
    bytes: Bytes per second that a large copy reads and writes.
    """

    flops: float
    bytes: float


@dataclass(frozen=True)
class PhaseResult:
    """The measurements of a step, by its phases (the names in `PHASE_LABELS`), and of the machine.

    seconds: CPU seconds of each phase.
    flops: Operations of the matrix products of each phase.
    bytes: Bytes of weights, gradients and moments that each phase reads and writes.
    products: Precision of the matrix products.
    rates: The rates of the machine, measured between the steps.
    processor: Description of the CPU.
    """

    seconds: dict[str, float]
    flops: dict[str, float]
    bytes: dict[str, float]
    products: str
    rates: MachineRates
    processor: str


def phase_table(phases: PhaseResult) -> str:
    """Return a text table of the CPU time of each phase of a step and of the whole step, with lower bounds.

    The lower bound of a phase is the longer one of two times: the time of its matrix products (without attention's) at
    the rate of one large product, and the time to access its weights, gradients and moments at the rate of one large
    copy.
    """
    rates = phases.rates
    rows = []
    total_seconds = total_bound = 0.0
    for name, label in PHASE_LABELS.items():
        seconds, flops, accessed_bytes = phases.seconds[name], phases.flops[name], phases.bytes[name]
        bound = max(flops / rates.flops, accessed_bytes / rates.bytes)
        rows.append([label, f"{seconds:.3f}", f"{flops / 1e9:.1f}", f"{accessed_bytes / 1e9:.2f}", f"{bound:.3f}"])
        total_seconds += seconds
        total_bound += bound
    rows.append(["a step", f"{total_seconds:.3f}", "", "", f"{total_bound:.3f}"])
    lead = (
        f"{phases.processor}, one thread: {rates.flops / 1e9:.0f} GFLOP/s in one large product of {phases.products}, "
        f"{rates.bytes / 1e9:.0f} GB/s in one large copy"
    )
    return f"{lead}\n{text_table(['', 'CPU s', 'GFLOP', 'GB', 'bound, s'], rows)}"


def write_json(file: Path, record: dict) -> None:
    """Write the record as JSON; an interrupted write leaves no partial file."""
    write_atomically(file, json.dumps(record, indent=1) + "\n")


def describe_machine(device: str = "cpu") -> dict:
    """Return the machine and the versions of the packages with which the benchmark runs."""
    import torch
    import transformers

    return {
        "platform": platform.platform(terse=True),
        "processor": platform.machine(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    } | {name: installed_version(name) for name in ("trl", "liger-kernel", "torchao")}
