"""Curves of several runs: means with their confidence intervals, and the metrics of recorded training runs."""

from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np

from grpo_lab.base.checks import InputError
from grpo_lab.teaching.plots.style import OKABE_ITO

# The 97.5 % quantile of Student's t by degrees of freedom, as in textbooks. A table is used because this would be the
# only use of scipy, which is a download of 35 MB.
T_TABLE = {
    1: 12.7062, 2: 4.30265, 3: 3.18245, 4: 2.77645, 5: 2.57058, 6: 2.44691, 7: 2.36462, 8: 2.30600, 9: 2.26216,
    10: 2.22814, 11: 2.20099, 12: 2.17881, 13: 2.16037, 14: 2.14479, 15: 2.13145, 16: 2.11991, 17: 2.10982, 18: 2.10092,
    19: 2.09302, 20: 2.08596, 21: 2.07961, 22: 2.07387, 23: 2.06866, 24: 2.06390, 25: 2.05954, 26: 2.05553, 27: 2.05183,
    28: 2.04841, 29: 2.04523, 30: 2.04227, 40: 2.02108, 60: 2.00030, 120: 1.97993, np.inf: 1.95996,
}  # fmt: skip
RUN_DASHES = ("-", "--", ":", "-.")
RUN_MARKERS = ("o", "s", "D", "^")


def as_array(values) -> np.ndarray:
    """Return numbers in a list, an array or a tensor (even one with a gradient or on a GPU) as a float array."""
    return np.asarray(values.detach().double().cpu() if hasattr(values, "detach") else values, dtype=float)


def finite(name: str, values) -> np.ndarray:
    """Return numbers as a float array.

    Args:
        name: The name of the argument, for the message.
        values: Numbers in a list, an array or a tensor.

    Raises:
        ValueError: if a number is NaN or infinite.
    """
    array = as_array(values)
    if not np.isfinite(array).all():
        raise InputError(name, array, "expected finite numbers", problem="holds NaN or infinity")
    return array


def mean_interval(runs) -> tuple[np.ndarray, np.ndarray]:
    """Compute the mean over runs and half the width of its 95 % confidence interval (Student's t), at every point.

    Args:
        runs: The values of each run at each point, shape (runs, points). At least two runs are needed to estimate the
            spread.

    Returns:
        The means and the half widths, shape (points) each.
    """
    runs = finite("runs", runs)
    if runs.ndim != 2 or len(runs) < 2:
        raise InputError(
            "runs", runs, "expected (runs, points), with at least 2 runs", problem=f"has shape {runs.shape}"
        )
    return runs.mean(0), t_quantile(len(runs) - 1) * runs.std(0, ddof=1) / np.sqrt(len(runs))


def t_quantile(df: int) -> float:
    """Return the t for which 95 % of Student's distribution with `df` degrees of freedom lie between -t and t.

    The result is exact to 0.0001. Above 30 degrees of freedom it is interpolated between entries of the table; t is
    almost linear in 1 / df.
    """
    inverse_df = [1 / degrees for degrees in T_TABLE]
    return float(np.interp(1 / df, inverse_df[::-1], list(T_TABLE.values())[::-1]))


def band(ax, x, runs, label: str, *, clip: tuple | None = None, **line):
    """Draw the mean over runs as a line, and its 95 % confidence interval as a band in the same colour.

    Args:
        ax: The matplotlib axes.
        x: The positions of the points on the x axis.
        runs: The values of each run at each point, shape (runs, points); at least two runs.
        label: The label of the line in the legend.
        clip: The least and the greatest possible value, at which the band ends, such as (0, 1) for a fraction. None if
            the value has no such limits.
        line: Further settings of the line, as in `Axes.plot`. Colour and dashes come from the style if not given.

    Returns:
        The line.
    """
    mean, half = mean_interval(runs)
    (line_drawn,) = ax.plot(as_array(x), mean, label=label, **line)
    low, high = np.clip((mean - half, mean + half), *clip) if clip else (mean - half, mean + half)
    ax.fill_between(as_array(x), low, high, color=line_drawn.get_color(), alpha=0.18, linewidth=0)
    return line_drawn


def training_curves(
    axes: Sequence, runs: Mapping[str, dict], colours: Sequence[str], panels: Mapping[str, tuple]
) -> None:
    """Draw each run in each panel: a metric by step, and marks for held-out problems before and after training.

    Args:
        axes: The matplotlib axes, one for each panel.
        runs: The name of a run -> its record: "metrics" by name and step; "before" and "after" hold measurements on
            held-out problems under "sampled". A run that was cut off has None as "after", and no mark there.
        colours: A colour name of `OKABE_ITO` for each run. Runs differ in dashes and markers, too.
        panels: The title of a panel -> the name of its metric and the name of the held-out measurement.
    """
    for ax, (title, (metric, measured)) in zip(axes, panels.items(), strict=True):
        for run, colour, dash, marker in zip(
            runs.values(), cycle(colours), cycle(RUN_DASHES), cycle(RUN_MARKERS), strict=False
        ):
            look, values = {"color": OKABE_ITO[colour]}, run["metrics"][metric]
            steps = range(1, len(values) + 1)
            ax.plot(steps, values, dash, linewidth=1.4, **look)
            ends = [(0, run["before"]), (len(values) + 1.5, run["after"])]
            for step, measurement in ends:
                if measurement:
                    ax.plot([step], [measurement["sampled"][measured]], marker, **look)
        ax.set(title=title, xlabel="step", ylim=(-0.03, 1.05))
    axes[0].set_ylabel("fraction of answers")
    note = "marks: held-out problems,\nbefore and after"
    axes[-1].text(0.03, 0.97, note, va="top", transform=axes[-1].transAxes, fontsize=9)


def logs_side_by_side(logs: dict[str, dict[str, list[float]]], panels: dict[str, str], log_scale: str, beside):
    """Make a figure with a column for each log and a row for each metric.

    Args:
        logs: The name of a log -> the values of each metric by step.
        panels: The name of a metric -> the label of its row.
        log_scale: The name of the metric that is drawn on a logarithmic scale.
        beside: The name of a metric -> its values in a run to compare with, drawn as dashed lines in every column.
    """
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(len(panels), len(logs), figsize=(7.2, 1.2 * len(panels)), sharex=True, sharey="row")
    for (name, log), column in zip(logs.items(), axes.T, strict=True):
        column[0].set_title(name)
        for (metric, label), ax in zip(panels.items(), column, strict=True):
            ax.plot(range(1, len(beside[metric]) + 1), beside[metric], "--", linewidth=1)
            ax.plot(range(1, len(log[metric]) + 1), log[metric], "-", color="black")
            ax.set(yscale="log" if metric == log_scale else "linear", ymargin=0.15)
            if name == next(iter(logs)):
                ax.set_ylabel(label)
    fig.supxlabel("step", fontsize=10)
    return fig
