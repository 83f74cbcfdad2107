"""`python -m grpo_lab.bench --gpu`: what Qwen2-0.5B costs on a card, each measurement in a fresh process.

The weights are random: neither time nor memory depends on what they have learnt. Every speed stands beside a limit that
is measured in the same run: the bandwidth of a copy, the rate of a large matrix product. A whole run keeps within nine
minutes: what there is no time left for is listed as such, not left out.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from grpo_lab.bench.process import NOT_INSTALLED, OUT_OF_MEMORY, is_installed, run_worker
from grpo_lab.display import GIB

PARTS = {"rollout": 180.0, "train": 110.0, "memory": 150.0, "trl": 90.0}  # seconds; what one leaves, the next may use
ALONE = 230.0  # seconds that a part has at most
CAP = 8 * 10**9  # bytes; a consumer card with 8 GiB keeps the rest for itself
WORKERS = "grpo_lab.bench.gpu"  # the package of the modules that measure
ENGINES = ("static", "generate")
NO_TIME = "no time left"

# Sizes on a card; on the CPU they only prove that everything works.
LONG = {"rows": 8, "num_generations": 8, "prompt": 256, "completion": 512}
SHORT = {"rows": 4, "num_generations": 2, "prompt": 8, "completion": 16}
SIZES = {
    "cuda": {
        "sequences": [8, 32, 128, 16, 64],  # the most telling first, should the time not do for all
        "rollout": {"num_generations": 8, "prompt": 256, "response": 256, "repeats": 1, "copy_bytes": GIB},
        "train": LONG | {"repeats": 3, "matmul_width": 8192},
        "memory": LONG | {"steps": 2},
        "trl": LONG | {"rows": 64, "per_device": 16, "completion": 256, "steps": 4},
    },
    "cpu": {
        "sequences": [2, 4],
        "rollout": {"num_generations": 2, "prompt": 8, "response": 8, "repeats": 1, "copy_bytes": 2**22},
        "train": SHORT | {"repeats": 1, "matmul_width": 256},
        "memory": SHORT | {"steps": 2},
        "trl": SHORT | {"per_device": 2, "completion": 8, "steps": 2},
    },
}


def compare(
    shape: str = "qwen2-0.5b",
    device: str = "cuda",
    only: list[str] | None = None,
    run: Callable[..., dict] = run_worker,
    clock: Callable[[], float] = time.monotonic,
) -> dict:
    """Measure the parts asked for (None: all); a cell that could not be measured says why under "missing"."""
    import torch

    from grpo_lab.bench.gpu import shared

    parts = [part for part in PARTS if only is None or part in only]
    sizes = SIZES[device]
    report = {"setup": {"shape": shape, "device": device, "sizes": sizes}} | {part: [] for part in parts}
    modes = shared.modes_of(torch.device(device))
    deadline = clock()
    for part in parts:
        started = clock()
        deadline = started + ALONE if len(parts) == 1 else min(deadline + PARTS[part], started + ALONE)
        for worker, spec in jobs(part, sizes, modes):
            spec |= {"shape": shape, "device": device}
            cell = spec | _measured(run, worker, spec, deadline - clock())
            report[part].append(cell)
            print(f"{part}: {name_of(cell)}: {cell.get('missing') or 'done'}", file=sys.stderr, flush=True)
    return report


def jobs(part: str, sizes: dict, modes: list[str]) -> Iterator[tuple[str, dict]]:
    """The measurements of a part, in order, as worker and spec."""
    spec = sizes[part]
    if part == "rollout":
        for sequences in sizes["sequences"]:
            for engine in ENGINES:
                yield f"{WORKERS}.rollout", spec | {"sequences": sequences, "engine": engine}
    small = "bf16" if "bf16" in modes else modes[-1]  # the mode for small cards, and the one that is looked at first
    modes = [small, *(mode for mode in modes if mode != small)]
    if part == "train":
        for mode, checkpointing in [(small, False), (small, True), *((mode, False) for mode in modes[1:])]:
            yield f"{WORKERS}.train", spec | {"mode": mode, "checkpointing": checkpointing}
    if part == "memory":
        for mode, cap in [(small, {}), (small, {"cap": CAP}), *((mode, {}) for mode in modes[1:])]:
            yield f"{WORKERS}.memory", spec | {"mode": mode, "checkpointing": True} | cap
    if part == "trl":
        mode = "bf16-naive" if "bf16-naive" in modes else "fp32"  # the one of its half-precision modes that is ours too
        for trainer in ("ours", "trl"):
            yield f"{WORKERS}.trl", spec | {"mode": mode, "checkpointing": False, "trainer": trainer}


def _measured(run: Callable[..., dict], worker: str, spec: dict, left: float) -> dict:
    if missing := _lacking(spec):
        return {"missing": missing}
    if left < 1:
        return {"missing": NO_TIME}
    try:
        return run(worker, spec, timeout=left)
    except MemoryError:
        return {"missing": OUT_OF_MEMORY}
    except subprocess.TimeoutExpired:
        return {"missing": NO_TIME}
    except RuntimeError as error:
        # A rented card is not given back for one fault: the rest is measured, and the command ends with an error.
        print(error, file=sys.stderr)
        return {"missing": "failed", "error": str(error)}


def _lacking(spec: dict) -> str | None:
    """What keeps a measurement from being made here."""
    if spec.get("trainer") == "trl" and not is_installed("trl"):
        return f"trl {NOT_INSTALLED}"
    if spec.get("cap") and spec["device"] != "cuda":
        return "needs a card"
    return None


def failures(report: dict) -> list[str]:
    """The measurements that ended with an error, by name."""
    cells = [(part, cell) for part in PARTS for cell in report.get(part, [])]
    return [f"{part}: {name_of(cell)}" for part, cell in cells if cell.get("missing") == "failed"]


def name_of(cell: dict) -> str:
    words = [cell[key] for key in ("engine", "trainer", "mode") if key in cell]
    words += [f"{cell['sequences']} sequences"] if "sequences" in cell else []
    words += ["checkpointing"] if cell.get("checkpointing") else []
    words += [f"under {cell['cap'] / 1e9:g} GB"] if cell.get("cap") else []
    return ", ".join(words)
