"""The specification of a measurement: the model, the device and the steps, and the engine that trains."""

from dataclasses import dataclass

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
