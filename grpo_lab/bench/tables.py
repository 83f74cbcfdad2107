"""Compare our trainer with TRL's by the ratios within pairs of runs, and make tables of the results."""

import statistics
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from tqdm import tqdm

from grpo_lab.base.display import text_table

TARGET_ACCURACY = 0.8  # mean reward that a run has to reach for its time to accuracy
WINDOW = 5  # number of steps over which the reward is averaged
# The figures of a run, one per row of the table: key, label, divisor for the printed unit, digits. A ratio is ours to
# TRL's.
FIGURES = (
    ("seconds_per_step", "seconds per step", 1, 3),
    ("time_to_accuracy", "seconds to accuracy", 1, 1),
    ("cpu_seconds_per_step", "CPU seconds per step", 1, 3),
    ("cpu_time_to_accuracy", "CPU seconds to accuracy", 1, 1),
    ("peak_memory", "peak memory, MiB", 2**20, 0),
)
# The label of each phase of a step in the table, by the name under which a clock records it.
PHASE_LABELS = {
    "time/rollout": "rollout", "time/logprobs": "log-probabilities", "backward": "backward", "optimizer": "optimizer",
    "rest": "rest",
}  # fmt: skip


def compare(seeds: list[int], setup: dict, run: Callable[[dict], dict]) -> dict:
    """Run our trainer and TRL's once for each seed; the one that runs first alternates from seed to seed.

    Args:
        seeds: The seed of each pair of runs.
        setup: "model", "precision", "device", "threads" and "steps", the same for all runs.
        run: Function that makes a run in a fresh process; it takes `setup` with "trainer" and "seed", and returns the
            record of `measure.measure_run`.

    Returns:
        {"setup": setup, "summary": as `summarise` returns it, "pairs": the figures and the record of each run}.
    """
    pairs = []
    with tqdm(total=2 * len(seeds), unit="run") as bar:
        for index, seed in enumerate(seeds):
            pair: dict[str, Any] = {"seed": seed}
            for trainer in ("ours", "trl") if index % 2 == 0 else ("trl", "ours"):
                bar.write(f"seed {seed}, {trainer}: {setup['steps']} steps begin", file=sys.stderr)
                record = run(setup | {"trainer": trainer, "seed": seed})
                pair[trainer] = run_figures(record) | {"history": record}
                progress = f"seed {seed}, {trainer}: {pair[trainer]['seconds_per_step']:.3f} s per step"
                bar.write(progress, file=sys.stderr)
                bar.update()
            pairs.append(pair)
    return {"setup": setup, "summary": summarise(pairs), "pairs": pairs}


def run_figures(record: dict) -> dict:
    """Compute the figures of a run, which are compared, from the record of `measure.measure_run`.

    Accuracy is the mean reward of the last `WINDOW` steps; no step repeats a problem. The time to accuracy is the
    training time from the start to the end of the step at which `TARGET_ACCURACY` is reached, or None if it is not
    reached. CPU seconds count the work of this process alone, and are more reliable on a busy machine.
    """
    rewards = record["reward"]
    figures: dict[str, float | None] = {"peak_memory": record["peak_memory"]}
    means = [statistics.fmean(rewards[i - WINDOW : i]) for i in range(WINDOW, len(rewards) + 1)]
    steps_to_accuracy = next((i + WINDOW for i, mean in enumerate(means) if mean >= TARGET_ACCURACY), None)
    for clock in ("", "cpu_"):
        step_ends = record[f"{clock}seconds"]
        step_seconds = [end - start for start, end in pairwise([0.0, *step_ends])]
        figures[f"{clock}seconds_per_step"] = statistics.median(step_seconds)
        figures[f"{clock}time_to_accuracy"] = None if steps_to_accuracy is None else step_ends[steps_to_accuracy - 1]
    return figures


def summarise(pairs: list[dict]) -> dict:
    """Summarise each figure over the pairs of runs: {figure: {"ours", "trl", "ratio", "ratios"}}.

    "ours" and "trl" are the medians of the two trainers. "ratios" are the sorted ratios within each pair, and "ratio"
    is their median; both leave out pairs in which a figure is None.
    """
    summary: dict[str, dict[str, Any]] = {}
    for key, *_ in FIGURES:
        values = {trainer: [pair[trainer][key] for pair in pairs] for trainer in ("ours", "trl")}
        complete_pairs = [pair for pair in zip(values["ours"], values["trl"], strict=True) if None not in pair]
        ratios = [ours / trl for ours, trl in complete_pairs]
        summary[key] = {trainer: _median(figure_values) for trainer, figure_values in values.items()}
        summary[key] |= {"ratio": _median(ratios), "ratios": sorted(ratios)}
    return summary


def _median(values: list) -> float | None:
    """Return the median of the values that are not None; None if there are none."""
    numbers = [value for value in values if value is not None]
    return statistics.median(numbers) if numbers else None


def comparison_table(report: dict) -> str:
    """Return the summary of a report as a text table, with a line for each figure."""
    setup = report["setup"]
    pairs = len(report["pairs"])
    rows = []
    for key, label, unit, digits in FIGURES:
        figure = report["summary"][key]
        medians = [
            "not reached" if figure[trainer] is None else f"{figure[trainer] / unit:.{digits}f}"
            for trainer in ("ours", "trl")
        ]
        ratio, ratios = "no pair", figure["ratios"]
        if ratios:
            coverage = f", in {len(ratios)} of {pairs} pairs" if len(ratios) < pairs else ""
            ratio = f"{figure['ratio']:.2f} ({ratios[0]:.2f}..{ratios[-1]:.2f}){coverage}"
        rows.append([label, *medians, ratio])
    lead = (
        f"{setup['model']}, {setup['precision']}, {setup['device']}, {setup['steps']} steps, {pairs} pair(s) of runs; "
        f"one torch thread on a CPU; accuracy: a mean reward of {TARGET_ACCURACY:g} over {WINDOW} steps; "
        "ratios: median (min..max over pairs)"
    )
    return f"{lead}\n{text_table(['', 'grpo_lab', 'TRL', 'grpo_lab/TRL'], rows)}"


def phase_table(measured: dict) -> str:
    """Return a text table of the CPU time of each phase of a step and of the whole step, with lower bounds.

    The lower bound of a phase is the longer one of two times: the time of its matrix products (without attention's) at
    the rate of one large product, and the time to access its weights, gradients and moments at the rate of one large
    copy.

    measured: The dict that `measure.measure_phases` returns.
    """
    rate = measured["rates"]
    rows = []
    total_seconds = total_bound = 0.0
    for name, label in PHASE_LABELS.items():
        seconds, flops, accessed_bytes = (measured[key][name] for key in ("seconds", "flops", "bytes"))
        bound = max(flops / rate["flops"], accessed_bytes / rate["bytes"])
        rows.append([label, f"{seconds:.3f}", f"{flops / 1e9:.1f}", f"{accessed_bytes / 1e9:.2f}", f"{bound:.3f}"])
        total_seconds += seconds
        total_bound += bound
    rows.append(["a step", f"{total_seconds:.3f}", "", "", f"{total_bound:.3f}"])
    lead = (
        f"{measured['processor']}, one thread: {rate['flops'] / 1e9:.0f} GFLOP/s in one large product of "
        f"{measured['products']}, "
        f"{rate['bytes'] / 1e9:.0f} GB/s in one large copy"
    )
    return f"{lead}\n{text_table(['', 'CPU s', 'GFLOP', 'GB', 'bound, s'], rows)}"
