"""A record of measurements: their results, the machine that they were made on, and the file that holds both."""

import json
import platform
from dataclasses import dataclass
from pathlib import Path

from grpo_lab.base.commands import installed_version
from grpo_lab.base.files import write_atomically

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
