"""Our trainer against TRL's: pairs of runs, and the ratios within each pair."""

import statistics
import sys
from collections.abc import Callable
from itertools import pairwise

from tqdm import tqdm

from grpo_lab.bench.process import run_worker
from grpo_lab.commands.display import text_table

WORKER = "grpo_lab.bench.train_worker"
ACCURACY = 0.8  # that time is taken to
WINDOW = 5  # steps that the running reward is averaged over
# What is compared: (key, label, unit divided by, digits). The ratio is ours over theirs.
ROWS = (
    ("seconds_per_step", "seconds per step", 1, 3),
    ("time_to_accuracy", "seconds to accuracy", 1, 1),
    ("cpu_seconds_per_step", "CPU seconds per step", 1, 3),
    ("cpu_time_to_accuracy", "CPU seconds to accuracy", 1, 1),
    ("steps_to_accuracy", "steps to accuracy", 1, 0),
    ("peak_memory", "peak memory, MiB", 2**20, 0),
    ("held_out_accuracy", "held-out accuracy at the end", 1, 3),
)


def compare(seeds: list[int], setup: dict, run: Callable[..., dict] = run_worker) -> dict:
    """One pair of runs a seed, each run in a fresh process; which of the two goes first changes from pair to pair.

    setup: "model", "precision", "device" and "steps" of all runs.
    """
    pairs, setup = [], setup | {"threads": 1 if setup["device"] == "cpu" else None}
    with tqdm(total=2 * len(seeds), unit="run") as bar:
        for index, seed in enumerate(seeds):
            pair = {}
            for trainer in ("ours", "trl") if index % 2 == 0 else ("trl", "ours"):
                bar.write(f"seed {seed}, {trainer}: {setup['steps']} steps begin", file=sys.stderr)
                measured = run(WORKER, setup | {"trainer": trainer, "seed": seed})
                pair[trainer] = figures(measured) | {"history": measured["history"]}
                said = f"seed {seed}, {trainer}: {pair[trainer]['seconds_per_step']:.3f} s per step"
                bar.write(said, file=sys.stderr)
                bar.update()
            pairs.append({"seed": seed} | pair)
    return {"setup": setup, "summary": summarise(pairs), "pairs": pairs}


def figures(measured: dict) -> dict:
    """What a run's record comes to.

    The accuracy is that of the training problems, of which each is new to the policy: the mean of the last `WINDOW`
    steps. Time to it is training time, from the start to the end of the step at which `ACCURACY` is reached; None if it
    is not. CPU seconds are the processor's own: on a busy machine they tell more.
    """
    history = measured["history"]
    rewards = history["reward"]
    means = [statistics.fmean(rewards[i - WINDOW : i]) for i in range(WINDOW, len(rewards) + 1)]
    reached = next((i + WINDOW for i, mean in enumerate(means) if mean >= ACCURACY), None)
    times = {}
    for clock in ("", "cpu_"):
        ends = history[f"{clock}seconds"]
        times[f"{clock}seconds_per_step"] = statistics.median(b - a for a, b in pairwise([0.0, *ends]))
        times[f"{clock}time_to_accuracy"] = None if reached is None else ends[reached - 1]
    return times | {
        "steps_to_accuracy": reached,
        "peak_memory": measured["peak_memory"],
        "held_out_accuracy": measured["held_out_accuracy"],
    }


def summarise(pairs: list[dict]) -> dict:
    """For each figure: the median of each side, and median, least and greatest of the ratios pair by pair."""
    summary = {}
    for key, *_ in ROWS:
        sides = {side: [pair[side][key] for pair in pairs] for side in ("ours", "trl")}
        ratios = [a / b for a, b in zip(sides["ours"], sides["trl"], strict=True) if a is not None and b]
        summary[key] = {side: _median(values) for side, values in sides.items()} | {
            "ratio": _median(ratios),
            "ratio_min": min(ratios, default=None),
            "ratio_max": max(ratios, default=None),
            "pairs": len(ratios),
        }
    return summary


def _median(values: list) -> float | int | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def table(report: dict) -> str:
    """The summary as text: a line a figure."""
    setup, pairs = report["setup"], len(report["pairs"])
    lead = (
        f"{setup['model']}, {setup['precision']}, {setup['device']}, {setup['steps']} steps, {pairs} pair(s) of runs; "
        "one torch thread on a CPU; accuracy: "
        f"a mean reward of {ACCURACY:g} over {WINDOW} steps; ratios: median (min..max over pairs)"
    )
    rows = []
    for key, label, unit, digits in ROWS:
        row = report["summary"][key]
        rows.append([label, *(_show(row[side], unit, digits) for side in ("ours", "trl")), _ratio(row, pairs)])
    return f"{lead}\n{text_table(['', 'grpo_lab', 'TRL', 'grpo_lab/TRL'], rows)}"


def _ratio(row: dict, pairs: int) -> str:
    if row["ratio"] is None:
        return "no pair"
    some = f", in {row['pairs']} of {pairs} pairs" if row["pairs"] < pairs else ""
    return f"{row['ratio']:.2f} ({row['ratio_min']:.2f}..{row['ratio_max']:.2f}){some}"


def _show(value: float | int | None, unit: int, digits: int) -> str:
    return "not reached" if value is None else f"{value / unit:.{digits}f}"
