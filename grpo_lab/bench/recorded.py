"""Recorded runs on show: what was measured on machines that a reader may not have, always marked as recorded.

The file is written by `record_qwen2.py`. Where it is missing, the reader is told which command writes it.
"""

import json
import os
from pathlib import Path

from grpo_lab.display import GIB, markdown_table, say

HOW = "`make gpu`, on a machine with an NVIDIA card, writes it"
PHASES = ("rollout", "reward", "score", "update")


def show_runs(path: str | os.PathLike) -> None:
    """Table of the training runs in a record; a sentence if there is none."""
    file = Path(path)
    record = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"runs": []}
    if not record["runs"]:
        say(f"No run on a card has been recorded yet (`{file.name}`): {HOW}.")
        return
    base = _accuracy(record["base"])
    recorded = f"**Recorded**, not computed here: {record['what']}. {describe(record['machine'])}."
    say(f"{recorded} Held-out accuracy of the base {base}.")
    say(as_markdown(run_rows(record)))


def run_rows(record: dict) -> list[dict[str, str]]:
    """A row for each run: what it reached on held-out problems, what it took, where its time went."""
    rows = []
    for run in record["runs"]:
        seconds = [run["seconds_per_station"][f"time/{name}"] for name in PHASES]
        rows.append(
            {
                "mode": run["mode"],
                "seed": str(run["seed"]),
                "held-out accuracy": _accuracy(run["evaluation"]),
                "weights that moved": f"{run['weights_moved']:.1%}",
                "peak": "-" if run["peak_memory"] is None else f"{run['peak_memory'] / GIB:.2f} GiB",
                "rollout : reward : score : update": " : ".join(f"{s / sum(seconds):.0%}" for s in seconds),
                "seconds a step": f"{run['seconds_per_station']['step_time'] / len(run['metrics']['reward']):.2f}",
            }
        )
    return rows


def _accuracy(evaluation: dict) -> str:
    low, high = evaluation["accuracy_ci95"]
    return f"{evaluation['accuracy']:.3f} ({low:.3f} to {high:.3f})"


def describe(machine: dict) -> str:
    """One line about the machine of a record."""
    device = machine["device"] if machine["device"] != "cpu" else f"CPU, {machine['processor']}"
    return f"{device}; torch {machine['torch']}, transformers {machine['transformers']}"


def as_markdown(rows: list[dict[str, str]]) -> str:
    """A Markdown table; the columns are the keys of the first row, and every row has them."""
    return markdown_table(list(rows[0]), [[row[name] for name in rows[0]] for row in rows])
