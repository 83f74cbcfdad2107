"""Curves of recorded training runs, with what was measured on held-out problems at either end."""

from collections.abc import Mapping, Sequence

from grpo_lab.teaching.plots.style import OKABE_ITO

DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "D", "^")


def training_curves(
    axes: Sequence, runs: Mapping[str, dict], colours: Sequence[str], panels: Mapping[str, tuple]
) -> None:
    """Draw each run into each panel: a metric by step, and marks for held-out problems before and after.

    Args:
        axes: one for each panel.
        runs: by name, as a recorder writes them: "metrics" by step, "before" and "after" with what was "sampled"; a run
            that was cut off has no "after" and gets no mark there.
        colours: of `OKABE_ITO`, one for each run. Dashes and markers differ as well.
        panels: by title, the metric of a step and the name of the held-out measurement.
    """
    for ax, (title, (metric, measured)) in zip(axes, panels.items(), strict=True):
        for run, colour, dash, marker in zip(runs.values(), colours, DASHES, MARKERS, strict=False):
            line, values = {"color": OKABE_ITO[colour]}, run["metrics"][metric]
            steps = range(1, len(values) + 1)
            ax.plot(steps, values, dash, linewidth=1.4, **line)
            ends = [(0, run["before"]), (len(values) + 1.5, run["after"])]
            for step, measurement in ends:
                if measurement:
                    ax.plot([step], [measurement["sampled"][measured]], marker, **line)
        ax.set(title=title, xlabel="step", ylim=(-0.03, 1.05))
    axes[0].set_ylabel("fraction of answers")
    words = "marks: held-out problems,\nbefore and after"
    axes[-1].text(0.03, 0.97, words, va="top", transform=axes[-1].transAxes, fontsize=9)
