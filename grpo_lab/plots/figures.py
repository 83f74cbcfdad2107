"""One look for every figure of the series, and what training and tokens look like while you watch.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart, and a line differs from its neighbours in
its dashes as well. The background is light and opaque, so that a figure stays readable in a dark theme. Matplotlib is
imported on first use: the package works without it.
"""

import base64
import io
import time

import numpy as np

from grpo_lab.display import display, in_ipython
from grpo_lab.plots.tokens import BACKGROUND, OKABE_ITO, as_array, token_heat

__all__ = ["OKABE_ITO", "LivePlot", "band", "finish", "mean_interval", "t_quantile", "token_heat", "use_style"]

DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
DPI = 110


def use_style() -> None:
    """Give every figure from here on the look of the series."""
    import matplotlib.pyplot as plt
    from cycler import cycler

    plt.rcParams.update(
        {
            "axes.prop_cycle": cycler(color=OKABE_ITO.values()) + cycler(linestyle=DASHES),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "axes.facecolor": BACKGROUND,
            "axes.titlesize": 11,
            "axes.labelsize": 10,
            "figure.facecolor": BACKGROUND,
            "figure.figsize": (7.2, 3.6),
            "figure.dpi": DPI,
            "figure.constrained_layout.use": True,
            "font.size": 10,
            "grid.color": "#E3E3E3",
            "legend.frameon": False,
            "legend.handlelength": 2.8,
            "lines.linewidth": 1.8,
            "savefig.facecolor": BACKGROUND,
        }
    )


def mean_interval(runs) -> tuple[np.ndarray, np.ndarray]:
    """Mean over runs and half the width of its 95 % confidence interval (Student's t), at every point.

    Args:
        runs: numbers of shape (runs, points), at least two runs: one run says nothing about its spread.
    """
    runs = as_array(runs)
    if runs.ndim != 2 or len(runs) < 2:
        raise ValueError(f"runs has shape {runs.shape}; (runs, points) with at least 2 runs is needed")
    if not np.isfinite(runs).all():
        raise ValueError("runs holds NaN or infinite values; leave those points out of every run")
    return runs.mean(0), t_quantile(len(runs) - 1) * runs.std(0, ddof=1) / np.sqrt(len(runs))


def t_quantile(df: int, level: float = 0.95) -> float:
    """The t that encloses `level` of Student's distribution, between -t and t.

    With t = sqrt(df) tan(angle) the density becomes a power of the cosine, and the tails end at a finite angle.
    """
    angle = np.linspace(0, np.pi / 2, 100_001)
    density = np.cos(angle) ** (df - 1)
    mass = np.concatenate([[0], np.cumsum(density[1:] + density[:-1])])
    return float(np.sqrt(df) * np.tan(np.interp(level * mass[-1], mass, angle)))


def band(ax, x, runs, label: str, **line):
    """Draw the mean over runs as a line, and its 95 % confidence interval as a band in the same colour.

    Args:
        ax: matplotlib axes.
        x: positions of the points.
        runs: shape (runs, points), as `mean_interval` takes it.
        label: for the legend.
        line: further settings for the line. Colour and dashes come from the style's cycle otherwise.
    """
    mean, half = mean_interval(runs)
    (drawn,) = ax.plot(as_array(x), mean, label=label, **line)
    ax.fill_between(as_array(x), mean - half, mean + half, color=drawn.get_color(), alpha=0.18, linewidth=0)
    return drawn


def finish(fig, *, caption: str, alt: str) -> None:
    """Show the figure in the notebook, its alternative text stored with it and its caption below, and close it.

    In a shell the caption is printed and the figure stays open, for `plt.show()` or `fig.savefig()`.

    Args:
        fig: matplotlib figure.
        caption: one sentence that says what to see.
        alt: what the figure shows, for those who cannot see it.
    """
    _check_text("caption", caption)
    _check_text("alt", alt)
    if in_ipython():
        display(*_bundle(fig, alt))
        _close(fig)
    _show_caption(caption)


class LivePlot:
    """Curves that grow while training runs: `live = LivePlot("reward")`, `callback=live`, then `live.finish(...)`.

    Raw values are faint, their mean over the steps around each one is strong. The one figure is redrawn in place, at
    most every `seconds`, and `finish` leaves it complete, with a caption. Outside of a notebook nothing is drawn.

    Args:
        metrics: names among those that training reports, one panel each.
        window: steps in the running mean, an odd number (of an even one, one more).
        seconds: time between two drawings.
    """

    def __init__(self, *metrics: str, window: int = 11, seconds: float = 3.0):
        if not metrics:
            raise ValueError("metrics is empty; name at least one, for example LivePlot('reward')")
        self.metrics, self.window, self.seconds = metrics, window, seconds
        self.steps: list[int] = []
        self.values: dict[str, list[float]] = {name: [] for name in metrics}
        self._handle, self._drawn_at = None, float("-inf")

    def __call__(self, step: int, metrics: dict) -> None:
        """Take the metrics of a step, and redraw when it is time."""
        if missing := [name for name in self.metrics if name not in metrics]:
            raise ValueError(f"metrics has no {missing[0]!r}; it has {', '.join(sorted(metrics))}")
        self.steps.append(step)
        for name in self.metrics:
            self.values[name].append(float(metrics[name]))
        if in_ipython() and time.monotonic() - self._drawn_at >= self.seconds:
            self._redraw(f"{' and '.join(self.metrics)} against training steps, still growing")

    def finish(self, *, caption: str, alt: str) -> None:
        """Draw the curves to their end, and put the caption below them."""
        _check_text("caption", caption)
        _check_text("alt", alt)
        if in_ipython():
            self._redraw(alt)
            _show_caption(caption)

    def figure(self):
        """The curves so far, as a matplotlib figure of its own."""
        import matplotlib.pyplot as plt

        fig, axes = plt.subplots(1, len(self.metrics), figsize=(3.6 * max(len(self.metrics), 2), 3.0), squeeze=False)
        half = self.window // 2
        for ax, name in zip(axes[0], self.metrics, strict=True):
            values, colour = self.values[name], OKABE_ITO["blue"]
            smooth = [np.mean(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
            ax.plot(self.steps, values, "-", color=colour, alpha=0.3, linewidth=1, label="each step")
            ax.plot(self.steps, smooth, "-", color=colour, label=f"mean of {2 * half + 1} steps")
            ax.set(xlabel="step", ylabel=name)
        axes[0, 0].legend()
        return fig

    def _redraw(self, alt: str) -> None:
        fig = self.figure()
        bundle, metadata = _bundle(fig, alt)
        _close(fig)
        if self._handle is None:
            self._handle = display(bundle, metadata, display_id=True)
        else:
            self._handle.update(bundle, metadata=metadata, raw=True)
        self._drawn_at = time.monotonic()


def _bundle(fig, alt: str) -> tuple[dict[str, str], dict]:
    """(MIME bundle, metadata) of the figure as a PNG of few colours, which takes a third of the space."""
    from PIL import Image

    raw, small = io.BytesIO(), io.BytesIO()
    fig.savefig(raw, format="png", dpi=DPI)
    # The octree keeps the colours of thin lines; the default method would merge them with the bands around them.
    few = Image.open(raw).convert("RGB").quantize(128, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    few.save(small, format="png", optimize=True)
    content = {"image/png": base64.b64encode(small.getvalue()).decode("ascii"), "text/plain": alt}
    return content, {"image/png": {"alt": alt}}


def _close(fig) -> None:
    """The notebook would show an open figure a second time."""
    import matplotlib.pyplot as plt

    plt.close(fig)


def _show_caption(caption: str) -> None:
    display({"text/markdown": f"**Figure.** {caption}", "text/plain": f"Figure. {caption}"})


def _check_text(name: str, text: str) -> None:
    if not text.strip():
        raise ValueError(f"{name} is empty; every figure of the series has one")
