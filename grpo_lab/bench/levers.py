"""What makes a step of a larger model on a processor fast: the parts of a step under each lever, side by side."""

import itertools
import statistics
import sys
from collections.abc import Callable

from grpo_lab.bench.process import peak_memory, run_worker, worker_main
from grpo_lab.bench.train_worker import our_config, settings_for
from grpo_lab.display import text_table
from grpo_lab.models import load_policy
from grpo_lab.rollout import static
from grpo_lab.tasks import TASKS
from grpo_lab.trainer import train

WORKER = "grpo_lab.bench.levers"
SEED = 0
STEPS = 2
PRECISIONS = ("fp32", "fp32-master")
# How tokens are drawn: label -> the cache, and whether rows that have ended leave the batch.
DECODERS = {
    "generate": {"cache_implementation": "dynamic", "drop": False},
    "static, all rows to the end": {"cache_implementation": "static", "drop": False},
    "static, ended rows leave": {"cache_implementation": "static", "drop": True},
}
# What is measured: (key, label, unit divided by, digits).
COLUMNS = (
    ("rollout", "rollout, s", 1, 2),
    ("score", "score, s", 1, 2),
    ("update", "update, s", 1, 2),
    ("step", "step, s", 1, 2),
    ("peak_memory", "peak, MiB", 2**20, 0),
    ("tokens", "tokens", 1, 0),
)


def compare(setup: dict, run: Callable[..., dict] = run_worker) -> dict:
    """Measure every lever in a fresh process. setup: model, task, steps and torch threads, the same for all."""
    cells = []
    for precision, decoder in itertools.product(PRECISIONS, DECODERS):
        cell = {"decoder": decoder, "precision": precision}
        cell |= run(WORKER, setup | DECODERS[decoder] | {"precision": precision})
        print(f"{decoder}, {precision}: {cell['step']:.2f} s a step", file=sys.stderr)
        cells.append(cell)
    return {"setup": setup, "cells": cells}


def table(report: dict) -> str:
    """One line a lever; in brackets the ratio to the first line."""
    setup, cells = report["setup"], report["cells"]
    lead = (
        f"model {setup['model']}, task {setup['task']}, {setup['threads']} thread(s): a step, mean of "
        f"{setup['steps']}; every completion carries "
        "gradient; score is the forward pass, update all that follows; in brackets the ratio to the first line"
    )
    rows = []
    for cell in cells:
        figures = [_show(cell[key], cells[0][key], unit, digits) for key, _, unit, digits in COLUMNS]
        rows.append([cell["decoder"], cell["precision"], *figures])
    return f"{lead}\n{text_table(['drawn by', 'precision', *(label for _, label, *_ in COLUMNS)], rows)}"


def _show(value: float | int, first: float | int, unit: int, digits: int) -> str:
    return f"{value / unit:.{digits}f} ({value / first:.2f})"


def every_other(completions, **columns) -> list[float]:
    """1 for every other completion, whatever it says: no row goes without gradient, so the work is always the same."""
    return [float(place % 2) for place in range(len(completions))]


def measure(spec: dict) -> dict:
    """Seconds of the parts of a step and tokens that it drew, means over the steps; peak memory of the process."""
    if not spec["drop"]:
        static.STILL_WRITING = 0
    model, tokenizer = load_policy(spec["model"], device="cpu", precision=spec["precision"])
    settings = settings_for(model, spec) | {"cache_implementation": spec["cache_implementation"]}
    config = our_config(SEED, spec["steps"], **settings)
    rows = TASKS[spec["task"]].rows("train", None, SEED)[: config.max_steps * config.prompts_per_step]
    history = train(model, tokenizer, rows, every_other, config)
    names = {part: f"time/{part}" for part in ("rollout", "score", "update")} | {"step": "step_time"}
    means = {part: statistics.fmean(metrics[name] for metrics in history) for part, name in names.items()}
    tokens = config.generation_batch_size * statistics.fmean(metrics["completions/mean_length"] for metrics in history)
    return means | {"tokens": tokens, "peak_memory": peak_memory()}


if __name__ == "__main__":
    worker_main(measure)
