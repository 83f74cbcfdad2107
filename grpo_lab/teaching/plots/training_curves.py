"""Curves of recorded training runs: with measurements on held-out problems, and the metrics of several logs."""

from collections.abc import Mapping, Sequence
from itertools import cycle

from grpo_lab.teaching.plots.style import OKABE_ITO

RUN_DASHES = ("-", "--", ":", "-.")
RUN_MARKERS = ("o", "s", "D", "^")


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
