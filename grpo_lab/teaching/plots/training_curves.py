"""Curves of recorded training runs, with measurements on held-out problems before and after training."""

from collections.abc import Mapping, Sequence

from grpo_lab.teaching.plots.style import OKABE_ITO

DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "D", "^")


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
        for run, colour, dash, marker in zip(runs.values(), colours, DASHES, MARKERS, strict=False):
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
