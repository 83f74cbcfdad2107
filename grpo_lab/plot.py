"""Plot metrics of one or several runs: `grpo-lab plot RUN [RUN ...]` writes a picture, `plot_runs` shows a figure.

Matplotlib is imported inside the functions, since a machine that only trains need not have it.
"""

import io
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from grpo_lab.base import Parser, command, writable_file
from grpo_lab.base.checks import InputError, InputPackageError, check_at_least
from grpo_lab.base.display import in_ipython
from grpo_lab.diagnose.logs import Log, read_log
from grpo_lab.teaching.plots.style import DASHES, DPI, LOOK, OKABE_ITO, finish

MARKERS = ("o", "s", "D", "^", "v", "P", "X")
SUFFIXES = (".png", ".svg", ".pdf")
MAX_MARKED_POINTS = 25  # a curve with at most this number of points has a marker at each point and is not smoothed
MAX_COLUMNS = 3


class Panel(NamedTuple):
    """A panel of the figure: a metric, with the title and the unit to print."""

    metric: str
    title: str
    unit: str


PANELS = (
    Panel("reward", "reward", "mean of a step"),
    Panel("completions/mean_length", "completion length", "tokens"),
    Panel("kl", "KL to the reference", "nats per token"),
    Panel("entropy", "entropy of the policy", "nats per token"),
    Panel("eval/accuracy", "accuracy on held-out problems", "share of completions"),
)


def plot_runs(runs: Sequence, metrics: Sequence[str] | None = None, smooth: int | None = None):
    """Draw metrics of one or several runs by step; in a notebook, show the figure.

    Args:
        runs: Folders of runs of this package or of TRL, or other logs that `read_log` takes; at most seven.
        metrics: Names of metrics, such as "loss" (docs/metrics.md). Metrics that no run has are left out and listed
            below the figure. None takes reward, completion length, KL, entropy and held-out accuracy.
        smooth: Number of steps of the centred mean, which is drawn as a thick line over the thin line of the steps. 1
            draws only the steps. None takes a tenth of the longest run, but at most 20.

    Returns:
        The matplotlib figure; None in a notebook, which has already shown it.

    Raises:
        InputError: if a folder has no metrics, no run has any of the metrics, or there are more than seven runs.
    """
    figure, notes = draw_runs(runs, metrics, smooth)
    if not in_ipython():
        return figure
    finish(figure, caption=". ".join([*notes, ""]).strip(), alt=notes[0])
    return None


def draw_runs(runs: Sequence, metrics: Sequence[str] | None = None, smooth: int | None = None) -> tuple:
    """Draw the figure of `plot_runs`, and write notes on it.

    See `plot_runs` for the arguments and the errors.

    Returns:
        The matplotlib figure; and sentences on what it shows, how it is smoothed and what is left out.
    """
    if find_spec("matplotlib") is None:
        raise InputPackageError("plot needs matplotlib, which is not installed: python -m pip install matplotlib")
    if not 1 <= len(runs) <= len(OKABE_ITO):
        expected = f"expected 1 to {len(OKABE_ITO)} runs, as many as can be told apart"
        raise InputError("runs", runs, expected, problem=f"are {len(runs)}")
    logs = [read_log(run) for run in runs]
    names = run_names([log.name for log in logs])
    panels = PANELS if metrics is None else [_panel(metric) for metric in metrics]
    drawn_panels = [panel for panel in panels if any(len(log.finite_values(panel.metric)) for log in logs)]
    if not drawn_panels:
        raise InputError("metrics", metrics, f"none of {', '.join(panel.metric for panel in panels)} is in the log")
    if smooth is None:
        smooth = min(20, max(1, max(len(log.rows) for log in logs) // 10))
    check_at_least("smooth", smooth, 1)
    left_out = [panel.metric for panel in panels if panel not in drawn_panels]
    plot = _Plot(names, logs, drawn_panels, left_out, smooth)
    return plot.draw(), plot.notes()


def run_names(paths: Sequence[str]) -> list[str]:
    """Return a short name for each run: the shortest end of its path by which all paths differ.

    Runs with the same path, such as logs that were given as lists, have a number as well: "run (1)", "run (2)".
    """
    parts_by_path = [Path(path).absolute().parts for path in paths]
    names = list(paths)
    for num_parts in range(1, max(map(len, parts_by_path)) + 1):
        ends = ["/".join(path_parts[-num_parts:]) for path_parts in parts_by_path]
        if len(set(ends)) == len(set(paths)):
            names = ends
            break
    return [
        f"{name} ({names[: index + 1].count(name)})" if names.count(name) > 1 else name
        for index, name in enumerate(names)
    ]


def centred_mean(values: Float[np.ndarray, " N"], window: int) -> Float[np.ndarray, " N"]:
    """Return the mean of each value and its (window - 1) // 2 neighbours on either side; fewer at the ends."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    num_neighbours = (window - 1) // 2
    first, last = np.maximum(index - num_neighbours, 0), np.minimum(index + num_neighbours, len(values) - 1)
    return (sums[last + 1] - sums[first]) / (last + 1 - first)


def _panel(metric: str) -> Panel:
    return next((panel for panel in PANELS if panel.metric == metric), Panel(metric, metric, metric))


@dataclass(frozen=True)
class _Plot:
    """The content of a figure of runs.

    names: The short names of the runs.
    logs: The log of each run.
    panels: The panels that are drawn; at least one log has their metric.
    left_out: Names of the chosen metrics that no log has.
    smooth: Number of steps of the centred mean; 1 draws only the steps.
    """

    names: list[str]
    logs: list[Log]
    panels: list[Panel]
    left_out: list[str]
    smooth: int

    def draw(self):
        """Return the matplotlib figure."""
        from matplotlib import style
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D

        columns = 2 if len(self.panels) in (2, 4) else min(MAX_COLUMNS, len(self.panels))
        rows = math.ceil(len(self.panels) / columns)
        has_legend = len(self.names) > 1
        with style.context(LOOK):
            figure = Figure(figsize=(3.6 * columns, 2.8 * rows + 0.3 * has_legend), layout="constrained")
            grid = figure.subplots(rows, columns, squeeze=False).flatten()
            for axes, panel in zip(grid, self.panels, strict=False):
                for log, line_style in zip(self.logs, _line_styles(), strict=False):
                    _draw_curve(axes, *log.points(panel.metric), line_style, self.smooth)
                axes.set(title=panel.title, xlabel="step", ylabel=panel.unit)
                axes.xaxis.get_major_locator().set_params(integer=True)
            for axes in grid[len(self.panels) :]:
                axes.remove()
            if has_legend:
                line_styles = _line_styles()[: len(self.names)]
                handles = [Line2D([], [], markersize=4, linewidth=1.6, **line_style) for line_style in line_styles]
                figure.legend(handles, self.names, loc="outside lower center", ncols=min(len(self.names), MAX_COLUMNS))
            heading = [] if has_legend else [self.names[0]]
            if smoothing := self.describe_smoothing():
                heading.append(smoothing)
            figure.suptitle("\n".join(heading), fontsize=10)
        return figure

    def describe_smoothing(self) -> str:
        """Describe how the curves are smoothed; "" if no curve is."""
        longest = max(len(log.finite_values(panel.metric)) for log in self.logs for panel in self.panels)
        window = 2 * ((self.smooth - 1) // 2) + 1
        if window == 1 or longest <= MAX_MARKED_POINTS:
            return ""
        return f"thin and pale: each step; thick: the centred mean of {window} steps, of fewer at the ends"

    def notes(self) -> list[str]:
        """Return sentences on what the figure shows, how it is smoothed, and which metrics are missing in which run."""
        notes = [f"{', '.join(panel.title for panel in self.panels)} by step of {', '.join(self.names)}"]
        if smoothing := self.describe_smoothing():
            notes.append(smoothing)
        if self.left_out:
            notes.append(f"left out, since no run has it: {', '.join(self.left_out)}")
        for name, log in zip(self.names, self.logs, strict=True):
            missing = [panel.metric for panel in self.panels if not len(log.finite_values(panel.metric))]
            if missing:
                notes.append(f"{name} has no {', '.join(missing)}")
        return notes


def _line_styles() -> list[dict]:
    """Return the line styles of the runs, which differ in colour, in dashes and in markers."""
    keys = ("color", "linestyle", "marker")
    return [dict(zip(keys, values, strict=True)) for values in zip(OKABE_ITO.values(), DASHES, MARKERS, strict=True)]


def _draw_curve(axes, steps, values, line_style: dict, smooth: int) -> None:
    """Draw a curve: the steps as a thin pale line, their mean as a thick line.

    A curve of few points, such as evaluations, is not smoothed.
    """
    if not len(steps):
        return
    if smooth > 2 and len(steps) > MAX_MARKED_POINTS:
        axes.plot(steps, values, color=line_style["color"], linestyle="-", linewidth=0.7, alpha=0.3)
        values = centred_mean(values, smooth)
    marker_distance = 1 if len(steps) <= MAX_MARKED_POINTS else max(1, len(steps) // 6)
    axes.plot(steps, values, markevery=marker_distance, markersize=4, linewidth=1.6, **line_style)


@command("grpo_lab.plot")
def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    if options.output.suffix.lower() not in SUFFIXES:
        raise InputError("output", str(options.output), f"expected a name that ends in one of {', '.join(SUFFIXES)}")
    figure, notes = draw_runs(options.runs, options.metrics, options.smooth)
    picture = io.BytesIO()
    figure.savefig(picture, format=options.output.suffix.lower()[1:], dpi=DPI)
    options.output.write_bytes(picture.getvalue())
    print(*notes, f"written: {options.output.as_posix()}", sep="\n")


def _parser() -> Parser:
    description = (
        "Draw reward, completion length, KL, entropy and held-out accuracy of one or several runs by the step."
    )
    parser = Parser(prog="python -m grpo_lab.plot", description=description)
    add = parser.add_argument
    runs_help = "the folder of a run, ours or TRL's; or metrics.jsonl, trainer_state.json"
    add("runs", nargs="+", metavar="RUN", help=runs_help)
    output_help = f"the picture, {', '.join(SUFFIXES)}; one of this name is replaced (default %(default)s)"
    add("--output", type=writable_file, default=Path("curves.png"), metavar="FILE", help=output_help)
    metrics_help = "the metrics to draw instead, by their names in metrics.jsonl, such as loss grad_norm"
    add("--metrics", nargs="+", metavar="NAME", help=metrics_help)
    smooth_help = "number of steps of the centred mean; 1: none (default: a tenth of the longest run, at most 20)"
    add("--smooth", type=int, metavar="N", help=smooth_help)
    return parser


if __name__ == "__main__":
    sys.exit(main())
