"""Recorded runs on show: what was measured on machines that a reader may not have, always marked as recorded."""

import json
import os
from pathlib import Path

from grpo_lab.display import GIB, markdown_table, say

HEAD = (
    *("mode", "seed", "held-out accuracy", "weights that moved", "peak"),
    *("rollout : reward : score : update", "seconds a step"),
)


def show_runs(path: str | os.PathLike) -> None:
    """Table of the training runs in a record of `record_qwen2.py`; where there is none, the command that writes it."""
    file = Path(path)
    if not file.is_file():
        how = "`make gpu`, on a machine with an NVIDIA card, writes it"
        say(f"No run on a card has been recorded yet (`{file.name}`): {how}.")
        return
    record = json.loads(file.read_text(encoding="utf-8"))
    machine, base = record["machine"], _accuracy(record["base"])
    made = f"{machine['device']}; torch {machine['torch']}, transformers {machine['transformers']}"
    say(f"**Recorded**, not computed here: {record['what']}. {made}. Held-out accuracy of the base {base}.")
    say(markdown_table(HEAD, [_row(run) for run in record["runs"]]))


def _row(run: dict) -> list[str]:
    """What a run reached on held-out problems, what it took, where its time went."""
    taken = run["seconds_per_station"]
    seconds = [taken[f"time/{name}"] for name in ("rollout", "reward", "score", "update")]
    return [
        run["mode"],
        str(run["seed"]),
        _accuracy(run["evaluation"]),
        f"{run['weights_moved']:.1%}",
        "-" if run["peak_memory"] is None else f"{run['peak_memory'] / GIB:.2f} GiB",
        " : ".join(f"{s / sum(seconds):.0%}" for s in seconds),
        f"{taken['step_time'] / len(run['metrics']['reward']):.2f}",
    ]


def _accuracy(evaluation: dict) -> str:
    low, high = evaluation["accuracy_ci95"]
    return f"{evaluation['accuracy']:.3f} ({low:.3f} to {high:.3f})"
