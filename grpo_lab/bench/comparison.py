"""The comparison of our trainer with TRL's: the figures of a run, pairs of runs, the ratios within a pair, a table."""

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from tqdm import tqdm

from grpo_lab.base.display import text_table
from grpo_lab.bench.record import OURS, TRL, RunResult, RunSpec, Setup

TARGET_ACCURACY = 0.8  # mean reward that a run has to reach for its time to accuracy
WINDOW = 5  # number of steps over which the reward is averaged


@dataclass(frozen=True)
class Figure:
    """A figure of a run, which is compared: how it is computed, and how a table shows it.

    label: The name in the table.
    of_run: Function that computes the figure from the measurements of a run; None if the run does not have it.
    decimals: Number of decimals in the table.
    divisor: The divisor for the unit of the table.
    """

    label: str
    of_run: Callable[[RunResult], float | None]
    decimals: int
    divisor: int = 1


def median_step(step_ends: list[float]) -> float:
    """Return the median time of a step, from the times at which the steps end."""
    return statistics.median(end - start for start, end in pairwise([0.0, *step_ends]))


def time_to_accuracy(step_ends: list[float], rewards: list[float]) -> float | None:
    """Return the end of the first step at which the mean reward of `WINDOW` steps is at least `TARGET_ACCURACY`.

    No step repeats a problem, so the mean reward is an accuracy.

    step_ends: The times at which the steps end.
    rewards: The mean reward of each step.
    """
    for num_steps in range(WINDOW, len(rewards) + 1):
        if statistics.fmean(rewards[num_steps - WINDOW : num_steps]) >= TARGET_ACCURACY:
            return step_ends[num_steps - 1]
    return None


# The figures in the order of the table. CPU seconds count the work of one process alone, and are more reliable if the
# machine has other work.
FIGURES = {
    "seconds_per_step": Figure("seconds per step", lambda run: median_step(run.seconds), decimals=3),
    "time_to_accuracy": Figure(
        "seconds to accuracy", lambda run: time_to_accuracy(run.seconds, run.reward), decimals=1
    ),
    "cpu_seconds_per_step": Figure("CPU seconds per step", lambda run: median_step(run.cpu_seconds), decimals=3),
    "cpu_time_to_accuracy": Figure(
        "CPU seconds to accuracy", lambda run: time_to_accuracy(run.cpu_seconds, run.reward), decimals=1
    ),
    "peak_memory": Figure("peak memory, MiB", lambda run: run.peak_memory, decimals=0, divisor=2**20),
}


@dataclass(frozen=True)
class RunPair:
    """Two runs with the same seed, one of each engine.

    runs: The measurements by engine, `OURS` and `TRL`, in the order in which the runs were made.
    """

    seed: int
    runs: dict[str, RunResult]

    def as_dict(self) -> dict:
        """Return the pair as a record holds it."""
        runs = {}
        for engine, run in self.runs.items():
            figures = {name: figure.of_run(run) for name, figure in FIGURES.items()}
            # The peak memory comes first, as in earlier records.
            memory = {"peak_memory": figures.pop("peak_memory")}
            runs[engine] = memory | figures | {"history": asdict(run)}
        return {"seed": self.seed} | runs


@dataclass(frozen=True)
class FigureSummary:
    """A figure over all pairs of runs.

    ours, trl: The medians of the two engines, over the runs that have the figure; None if there are none.
    ratio: The median of the ratios; None if there are none.
    ratios: The sorted ratios, ours to TRL's, within each pair of which both runs have the figure.
    """

    ours: float | None
    trl: float | None
    ratio: float | None
    ratios: list[float]


@dataclass(frozen=True)
class Comparison:
    """The pairs of runs of a benchmark."""

    setup: Setup
    pairs: list[RunPair]

    @property
    def summary(self) -> dict[str, FigureSummary]:
        """The summary of each figure over the pairs, by its name in `FIGURES`."""
        summary = {}
        for name, figure in FIGURES.items():
            ours, trl = ([figure.of_run(pair.runs[engine]) for pair in self.pairs] for engine in (OURS, TRL))
            ratios = sorted(
                our_figure / trl_figure
                for our_figure, trl_figure in zip(ours, trl, strict=True)
                if our_figure is not None and trl_figure is not None
            )
            summary[name] = FigureSummary(_median(ours), _median(trl), _median(ratios), ratios)
        return summary

    def as_dict(self) -> dict:
        """Return the comparison as a record holds it."""
        summary = {name: asdict(figure) for name, figure in self.summary.items()}
        return {"setup": asdict(self.setup), "summary": summary, "pairs": [pair.as_dict() for pair in self.pairs]}


def _median(values: Sequence[float | None]) -> float | None:
    """Return the median of the values that are not None; None if there are none."""
    numbers = [value for value in values if value is not None]
    return statistics.median(numbers) if numbers else None


def compare(seeds: list[int], setup: Setup, make_run: Callable[[RunSpec], RunResult]) -> Comparison:
    """Run our trainer and TRL's once for each seed; the one that runs first alternates from seed to seed.

    Args:
        seeds: The seed of each pair of runs.
        setup: The setup of all runs.
        make_run: Function that makes a run in a fresh process, as `measure.measure_run` does.
    """
    pairs = []
    with tqdm(total=2 * len(seeds), unit="run") as bar:
        for index, seed in enumerate(seeds):
            runs: dict[str, RunResult] = {}
            for engine in (OURS, TRL) if index % 2 == 0 else (TRL, OURS):
                bar.write(f"seed {seed}, {engine}: {setup.steps} steps begin", file=sys.stderr)
                runs[engine] = make_run(RunSpec(setup, seed, engine))
                seconds = median_step(runs[engine].seconds)
                bar.write(f"seed {seed}, {engine}: {seconds:.3f} s per step", file=sys.stderr)
                bar.update()
            pairs.append(RunPair(seed, runs))
    return Comparison(setup, pairs)


def comparison_table(comparison: Comparison) -> str:
    """Return the summary of a comparison as a text table, with a line for each figure."""
    setup, num_pairs = comparison.setup, len(comparison.pairs)
    rows = []
    for name, summary in comparison.summary.items():
        figure = FIGURES[name]
        medians = [
            "not reached" if median is None else f"{median / figure.divisor:.{figure.decimals}f}"
            for median in (summary.ours, summary.trl)
        ]
        ratio, ratios = "no pair", summary.ratios
        if ratios:
            coverage = f", in {len(ratios)} of {num_pairs} pairs" if len(ratios) < num_pairs else ""
            ratio = f"{summary.ratio:.2f} ({ratios[0]:.2f}..{ratios[-1]:.2f}){coverage}"
        rows.append([figure.label, *medians, ratio])
    lead = (
        f"{setup.model}, {setup.precision}, {setup.device}, {setup.steps} steps, {num_pairs} pair(s) of runs; "
        f"one torch thread on a CPU; accuracy: a mean reward of {TARGET_ACCURACY:g} over {WINDOW} steps; "
        "ratios: median (min..max over pairs)"
    )
    return f"{lead}\n{text_table(['', 'grpo_lab', 'TRL', 'grpo_lab/TRL'], rows)}"
