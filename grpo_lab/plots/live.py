"""Curves that grow while training runs."""

import time

import numpy as np

from grpo_lab.display import display, in_ipython
from grpo_lab.plots.style import OKABE_ITO, picture, show_caption

SECONDS = 3.0  # between two drawings
AROUND = 5  # steps before and after each one in the running mean, fewer near the two ends
BESIDE = 2  # panels in a row: more would be too small to read


class LivePlot:
    """Curves that grow while training runs: `live = LivePlot("reward")`, `callback=live`, then `live.finish(...)`.

    Raw values are faint, their mean over the steps around each one is strong. Near an end it is taken over as many
    steps before as after, so that it begins and ends on its data. The one figure is redrawn in place, at most every few
    seconds, and `finish` leaves it complete, with a caption. Outside of a notebook nothing is drawn.

    metrics: names among those that training reports at every step, one panel each.
    """

    def __init__(self, *metrics: str):
        self.metrics = metrics
        self.points: dict[str, list[tuple[int, float]]] = {name: [] for name in metrics}
        self._handle, self._drawn_at = None, float("-inf")

    def __call__(self, step: int, metrics: dict) -> None:
        """Take the metrics of a step, and redraw when it is time."""
        if missing := [name for name in self.metrics if name not in metrics]:
            raise ValueError(f"metrics has no {missing[0]!r}; it has {', '.join(sorted(metrics))}")
        for name in self.metrics:
            if metrics[name] is not None:  # as a reward that applied to nothing
                self.points[name].append((step, float(metrics[name])))
        if in_ipython() and time.monotonic() - self._drawn_at >= SECONDS:
            self._redraw(f"{' and '.join(self.metrics)} against training steps, still growing")

    def finish(self, *, caption: str, alt: str) -> None:
        """Draw the curves to their end, and put the caption below them."""
        if in_ipython():
            self._redraw(alt)
            show_caption(caption)

    def figure(self):
        """The curves so far, as a matplotlib figure of its own."""
        import matplotlib.pyplot as plt

        count = len(self.metrics)
        rows, columns = -(-count // BESIDE), min(count, BESIDE)
        fig, axes = plt.subplots(rows, columns, figsize=(7.2, 0.4 + 2.3 * rows), squeeze=False)
        for ax, name in zip(axes.flat, self.metrics, strict=False):
            self._draw(ax, name)
            ax.set(xlabel="step", ylabel=name)
            ax.xaxis.get_major_locator().set_params(integer=True)
        for ax in axes.flat[count:]:
            ax.remove()
        handles = {line.get_label(): line for ax in fig.axes for line in ax.lines}
        fig.legend(handles.values(), handles, loc="outside upper center", ncols=len(handles))
        return fig

    def _draw(self, ax, name: str) -> None:
        steps, values = [step for step, _ in self.points[name]], [value for _, value in self.points[name]]
        colour = OKABE_ITO["blue"]
        ax.plot(steps, values, "-", color=colour, alpha=0.3, linewidth=1, label="each step")
        ax.plot(steps, smoothed(values), "-", color=colour, label=f"mean of up to {2 * AROUND + 1} steps")

    def _redraw(self, alt: str) -> None:
        bundle, metadata = picture(self.figure(), alt)
        if self._handle is None:
            self._handle = display(bundle, metadata, display_id=True)
        else:
            self._handle.update(bundle, metadata=metadata, raw=True)
        self._drawn_at = time.monotonic()


def smoothed(values: list[float]) -> list[float]:
    """The mean over the steps around each one: as many before it as after it, so a trend does not shift it."""
    last = len(values) - 1
    reach = [min(AROUND, i, last - i) for i in range(len(values))]
    return [float(np.mean(values[i - r : i + r + 1])) for i, r in enumerate(reach)]
