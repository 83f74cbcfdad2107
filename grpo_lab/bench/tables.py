"""Our trainer against TRL's: pairs of runs, and the ratios within each pair; and the table of the phases of a step."""

import statistics
import sys
from collections.abc import Callable
from itertools import pairwise

from tqdm import tqdm

from grpo_lab.base.display import text_table

ACCURACY = 0.8  # that time is taken to
WINDOW = 5  # steps that the running reward is averaged over
# What is compared: (key, label, unit divided by, digits). The ratio is ours over theirs.
ROWS = (
    ("seconds_per_step", "seconds per step", 1, 3),
    ("time_to_accuracy", "seconds to accuracy", 1, 1),
    ("cpu_seconds_per_step", "CPU seconds per step", 1, 3),
    ("cpu_time_to_accuracy", "CPU seconds to accuracy", 1, 1),
    ("peak_memory", "peak memory, MiB", 2**20, 0),
)
PHASES = {
    "time/rollout": "rollout", "time/logprobs": "log-probabilities", "backward": "backward", "optimizer": "optimizer",
    "rest": "rest",
}  # fmt: skip


def compare(seeds: list[int], setup: dict, run: Callable[[dict], dict]) -> dict:
    """One pair of runs a seed; which of the two goes first changes from pair to pair.

    setup: "model", "precision", "device", "threads" and "steps" of all runs.
    run: one of them, in a fresh process.
    """
    pairs = []
    with tqdm(total=2 * len(seeds), unit="run") as bar:
        for index, seed in enumerate(seeds):
            pair = {"seed": seed}
            for trainer in ("ours", "trl") if index % 2 == 0 else ("trl", "ours"):
                bar.write(f"seed {seed}, {trainer}: {setup['steps']} steps begin", file=sys.stderr)
                measured = run(setup | {"trainer": trainer, "seed": seed})
                pair[trainer] = figures(measured) | {"history": measured}
                progress = f"seed {seed}, {trainer}: {pair[trainer]['seconds_per_step']:.3f} s per step"
                bar.write(progress, file=sys.stderr)
                bar.update()
            pairs.append(pair)
    return {"setup": setup, "summary": summarise(pairs), "pairs": pairs}


def figures(measured: dict) -> dict:
    """The figures of a run, from its record.

    The accuracy is that of the training problems, of which each is new to the policy: the mean of the last `WINDOW`
    steps. Time to it is training time, from the start to the end of the step at which `ACCURACY` is reached; None if it
    is not. CPU seconds are the processor's own: on a busy machine they tell more.
    """
    rewards, figures_of_run = measured["reward"], {"peak_memory": measured["peak_memory"]}
    means = [statistics.fmean(rewards[i - WINDOW : i]) for i in range(WINDOW, len(rewards) + 1)]
    reached = next((i + WINDOW for i, mean in enumerate(means) if mean >= ACCURACY), None)
    for clock in ("", "cpu_"):
        ends = measured[f"{clock}seconds"]
        figures_of_run[f"{clock}seconds_per_step"] = statistics.median(b - a for a, b in pairwise([0.0, *ends]))
        figures_of_run[f"{clock}time_to_accuracy"] = None if reached is None else ends[reached - 1]
    return figures_of_run


def summarise(pairs: list[dict]) -> dict:
    """For each figure: the median of each side, and median, least and greatest of the ratios pair by pair."""
    summary = {}
    for key, *_ in ROWS:
        sides = {side: [pair[side][key] for pair in pairs] for side in ("ours", "trl")}
        ratios = [a / b for a, b in zip(sides["ours"], sides["trl"], strict=True) if a is not None and b is not None]
        summary[key] = {side: _median(values) for side, values in sides.items()}
        summary[key] |= {"ratio": _median(ratios), "ratios": sorted(ratios)}
    return summary


def _median(values: list) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def table(report: dict) -> str:
    """The summary as text: a line per figure."""
    setup = report["setup"]
    pairs = len(report["pairs"])
    rows = []
    for key, label, unit, digits in ROWS:
        row = report["summary"][key]
        sides = ["not reached" if row[side] is None else f"{row[side] / unit:.{digits}f}" for side in ("ours", "trl")]
        ratio, ratios = "no pair", row["ratios"]
        if ratios:
            coverage = f", in {len(ratios)} of {pairs} pairs" if len(ratios) < pairs else ""
            ratio = f"{row['ratio']:.2f} ({ratios[0]:.2f}..{ratios[-1]:.2f}){coverage}"
        rows.append([label, *sides, ratio])
    lead = (
        f"{setup['model']}, {setup['precision']}, {setup['device']}, {setup['steps']} steps, {pairs} pair(s) of runs; "
        f"one torch thread on a CPU; accuracy: a mean reward of {ACCURACY:g} over {WINDOW} steps; "
        "ratios: median (min..max over pairs)"
    )
    return f"{lead}\n{text_table(['', 'grpo_lab', 'TRL', 'grpo_lab/TRL'], rows)}"


def phase_table(measured: dict) -> str:
    """A table of one step's processor time: a line per phase beside the least that it needs, and the whole step.

    The bound of a phase is the longer of two times: that of its matrix products (without attention's) at the rate of
    one large product, and that of its weights, gradients and moments at the rate of one large copy.
    """
    rate = measured["rates"]
    rows = []
    total = [0.0, 0.0]
    for name, label in PHASES.items():
        seconds, flops, size = (measured[key][name] for key in ("seconds", "flops", "bytes"))
        bound = max(flops / rate["flops"], size / rate["bytes"])
        rows.append([label, f"{seconds:.3f}", f"{flops / 1e9:.1f}", f"{size / 1e9:.2f}", f"{bound:.3f}"])
        total = [total[0] + seconds, total[1] + bound]
    rows.append(["a step", f"{total[0]:.3f}", "", "", f"{total[1]:.3f}"])
    lead = (
        f"{measured['processor']}, one thread: {rate['flops'] / 1e9:.0f} GFLOP/s in one large product of "
        f"{measured['products']}, "
        f"{rate['bytes'] / 1e9:.0f} GB/s in one large copy"
    )
    return f"{lead}\n{text_table(['', 'CPU s', 'GFLOP', 'GB', 'bound, s'], rows)}"
