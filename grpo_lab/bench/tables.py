"""Text tables of a benchmark: the comparison with TRL, and the phases of a step."""

from dataclasses import dataclass

from grpo_lab.base.display import text_table
from grpo_lab.bench.comparison import FIGURES, TARGET_ACCURACY, WINDOW, Comparison
from grpo_lab.bench.record import PHASE_LABELS, PhaseResult


@dataclass(frozen=True)
class FigureFormat:
    """How a table shows a figure: its label, the divisor for the printed unit, and the number of decimals."""

    label: str
    divisor: int
    decimals: int


FIGURE_FORMATS = {
    "seconds_per_step": FigureFormat("seconds per step", 1, 3),
    "time_to_accuracy": FigureFormat("seconds to accuracy", 1, 1),
    "cpu_seconds_per_step": FigureFormat("CPU seconds per step", 1, 3),
    "cpu_time_to_accuracy": FigureFormat("CPU seconds to accuracy", 1, 1),
    "peak_memory": FigureFormat("peak memory, MiB", 2**20, 0),
}


def comparison_table(comparison: Comparison) -> str:
    """Return the summary of a comparison as a text table, with a line for each figure."""
    setup, num_pairs = comparison.setup, len(comparison.pairs)
    rows = []
    for name in FIGURES:
        figure, form = comparison.summary[name], FIGURE_FORMATS[name]
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


def phase_table(phases: PhaseResult) -> str:
    """Return a text table of the CPU time of each phase of a step and of the whole step, with lower bounds.

    The lower bound of a phase is the longer one of two times: the time of its matrix products (without attention's) at
    the rate of one large product, and the time to access its weights, gradients and moments at the rate of one large
    copy.
    """
    rates = phases.rates
    rows = []
    total_seconds = total_bound = 0.0
    for name, label in PHASE_LABELS.items():
        seconds, flops, accessed_bytes = phases.seconds[name], phases.flops[name], phases.bytes[name]
        bound = max(flops / rates.flops, accessed_bytes / rates.bytes)
        rows.append([label, f"{seconds:.3f}", f"{flops / 1e9:.1f}", f"{accessed_bytes / 1e9:.2f}", f"{bound:.3f}"])
        total_seconds += seconds
        total_bound += bound
    rows.append(["a step", f"{total_seconds:.3f}", "", "", f"{total_bound:.3f}"])
    lead = (
        f"{phases.processor}, one thread: {rates.flops / 1e9:.0f} GFLOP/s in one large product of {phases.products}, "
        f"{rates.bytes / 1e9:.0f} GB/s in one large copy"
    )
    return f"{lead}\n{text_table(['', 'CPU s', 'GFLOP', 'GB', 'bound, s'], rows)}"
