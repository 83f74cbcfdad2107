"""The comparison of our trainer with TRL's: pairs of runs, their figures, the ratios within a pair, and a table."""

import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise

from tqdm import tqdm

from grpo_lab.base.display import text_table
from grpo_lab.bench.record import OURS, TRL, RunResult, RunSpec, Setup

TARGET_ACCURACY = 0.8  # mean reward that a run has to reach for its time to accuracy
WINDOW = 5  # number of steps over which the reward is averaged


@dataclass(frozen=True)
class FigureFormat:
    """How a table shows a figure: its label, the divisor for the printed unit, and the number of decimals."""

    label: str
    divisor: int
    decimals: int


# The figures that are compared, in the order of the table.
FIGURES = {
    "seconds_per_step": FigureFormat("seconds per step", 1, 3),
    "time_to_accuracy": FigureFormat("seconds to accuracy", 1, 1),
    "cpu_seconds_per_step": FigureFormat("CPU seconds per step", 1, 3),
    "cpu_time_to_accuracy": FigureFormat("CPU seconds to accuracy", 1, 1),
    "peak_memory": FigureFormat("peak memory, MiB", 2**20, 0),
}


@dataclass(frozen=True)
class RunFigures:
    """The figures of a run, which are compared.

    A time to accuracy is the training time from the start to the end of the step at which `TARGET_ACCURACY` is reached;
    None if it is not reached. CPU seconds count the work of this process alone, and are more reliable on a busy
    machine.
    """

    peak_memory: int
    seconds_per_step: float
    time_to_accuracy: float | None
    cpu_seconds_per_step: float
    cpu_time_to_accuracy: float | None


@dataclass(frozen=True)
class ComparedRun:
    """A run of one engine, with its figures."""

    figures: RunFigures
    result: RunResult


@dataclass(frozen=True)
class RunPair:
    """Two runs with the same seed, one of each engine.

    runs: The runs by engine, `OURS` and `TRL`, in the order in which they were made.
    """

    seed: int
    runs: dict[str, ComparedRun]

    def as_dict(self) -> dict:
        """Return the pair as a record holds it."""
        runs = {engine: asdict(run.figures) | {"history": asdict(run.result)} for engine, run in self.runs.items()}
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
    """The pairs of runs of a benchmark and the summary of each figure, by its name in `FIGURES`."""

    setup: Setup
    summary: dict[str, FigureSummary]
    pairs: list[RunPair]

    def as_dict(self) -> dict:
        """Return the comparison as a record holds it."""
        summary = {name: asdict(figure) for name, figure in self.summary.items()}
        return {"setup": asdict(self.setup), "summary": summary, "pairs": [pair.as_dict() for pair in self.pairs]}


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
            runs: dict[str, ComparedRun] = {}
            for engine in (OURS, TRL) if index % 2 == 0 else (TRL, OURS):
                bar.write(f"seed {seed}, {engine}: {setup.steps} steps begin", file=sys.stderr)
                result = make_run(RunSpec(setup, seed, engine))
                runs[engine] = ComparedRun(run_figures(result), result)
                seconds = runs[engine].figures.seconds_per_step
                bar.write(f"seed {seed}, {engine}: {seconds:.3f} s per step", file=sys.stderr)
                bar.update()
            pairs.append(RunPair(seed, runs))
    return Comparison(setup, summarise([pair.runs for pair in pairs]), pairs)


def run_figures(result: RunResult) -> RunFigures:
    """Compute the figures of a run, whose accuracy is the mean reward of its last `WINDOW` steps.

    No step repeats a problem.
    """
    rewards = result.reward
    means = [statistics.fmean(rewards[i - WINDOW : i]) for i in range(WINDOW, len(rewards) + 1)]
    steps_to_accuracy = next((i + WINDOW for i, mean in enumerate(means) if mean >= TARGET_ACCURACY), None)
    return RunFigures(
        peak_memory=result.peak_memory,
        seconds_per_step=_median_step(result.seconds),
        time_to_accuracy=None if steps_to_accuracy is None else result.seconds[steps_to_accuracy - 1],
        cpu_seconds_per_step=_median_step(result.cpu_seconds),
        cpu_time_to_accuracy=None if steps_to_accuracy is None else result.cpu_seconds[steps_to_accuracy - 1],
    )


def _median_step(step_ends: list[float]) -> float:
    """Return the median time of a step, from the times at which the steps end."""
    return statistics.median(end - start for start, end in pairwise([0.0, *step_ends]))


def summarise(pairs: list[dict[str, ComparedRun]]) -> dict[str, FigureSummary]:
    """Summarise each figure over the pairs of runs, each by engine."""
    summary = {}
    for name in FIGURES:
        ours, trl = ([getattr(runs[engine].figures, name) for runs in pairs] for engine in (OURS, TRL))
        complete_pairs = [pair for pair in zip(ours, trl, strict=True) if None not in pair]
        ratios = sorted(our_figure / trl_figure for our_figure, trl_figure in complete_pairs)
        summary[name] = FigureSummary(_median(ours), _median(trl), _median(ratios), ratios)
    return summary


def _median(values: list) -> float | None:
    """Return the median of the values that are not None; None if there are none."""
    numbers = [value for value in values if value is not None]
    return statistics.median(numbers) if numbers else None


def comparison_table(comparison: Comparison) -> str:
    """Return the summary of a comparison as a text table, with a line for each figure."""
    setup, num_pairs = comparison.setup, len(comparison.pairs)
    rows = []
    for name, form in FIGURES.items():
        figure = comparison.summary[name]
        medians = [
            "not reached" if median is None else f"{median / form.divisor:.{form.decimals}f}"
            for median in (figure.ours, figure.trl)
        ]
        ratio, ratios = "no pair", figure.ratios
        if ratios:
            coverage = f", in {len(ratios)} of {num_pairs} pairs" if len(ratios) < num_pairs else ""
            ratio = f"{figure.ratio:.2f} ({ratios[0]:.2f}..{ratios[-1]:.2f}){coverage}"
        rows.append([form.label, *medians, ratio])
    lead = (
        f"{setup.model}, {setup.precision}, {setup.device}, {setup.steps} steps, {num_pairs} pair(s) of runs; "
        f"one torch thread on a CPU; accuracy: a mean reward of {TARGET_ACCURACY:g} over {WINDOW} steps; "
        "ratios: median (min..max over pairs)"
    )
    return f"{lead}\n{text_table(['', 'grpo_lab', 'TRL', 'grpo_lab/TRL'], rows)}"
