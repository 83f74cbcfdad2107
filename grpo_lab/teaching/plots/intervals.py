"""Means over runs with their confidence intervals, as numbers and drawn as bands."""

import numpy as np

from grpo_lab.base.checks import InputError


def as_array(values) -> np.ndarray:
    """Numbers in lists, arrays or tensors (with a gradient or on a GPU, too) as a float array."""
    return np.asarray(values.detach().double().cpu() if hasattr(values, "detach") else values, dtype=float)


def finite(name: str, values) -> np.ndarray:
    """Numbers as a float array, refused unless all are finite; `name` is the argument's, for the message."""
    array = as_array(values)
    if not np.isfinite(array).all():
        raise InputError(name, array, "expected finite numbers", found="holds NaN or infinity")
    return array


def mean_interval(runs) -> tuple[np.ndarray, np.ndarray]:
    """Mean over runs and half the width of its 95 % confidence interval (Student's t), at every point.

    Args:
        runs: numbers of shape (runs, points), at least two runs: one run says nothing about its spread.
    """
    runs = finite("runs", runs)
    if runs.ndim != 2 or len(runs) < 2:
        raise InputError("runs", runs, "expected (runs, points), with at least 2 runs", found=f"has shape {runs.shape}")
    return runs.mean(0), t_quantile(len(runs) - 1) * runs.std(0, ddof=1) / np.sqrt(len(runs))


def t_quantile(df: int) -> float:
    """The t that encloses 95 % of Student's distribution, between -t and t.

    With t = sqrt(df) tan(angle) the density becomes a power of the cosine, and the tails end at a finite angle.
    """
    angle = np.linspace(0, np.pi / 2, 100_001)
    density = np.cos(angle) ** (df - 1)
    mass = np.concatenate([[0], np.cumsum(density[1:] + density[:-1])])
    return float(np.sqrt(df) * np.tan(np.interp(0.95 * mass[-1], mass, angle)))


def band(ax, x, runs, label: str, *, clip: tuple | None = None, **line):
    """Draw the mean over runs as a line, and its 95 % confidence interval as a band in the same colour.

    Args:
        ax: matplotlib axes.
        x: positions of the points.
        runs: shape (runs, points), as `mean_interval` takes it.
        label: for the legend.
        clip: the least and the greatest value that can be, such as (0, 1) for a share: the band ends there.
        line: further settings for the line. Colour and dashes come from the style's cycle otherwise.
    """
    mean, half = mean_interval(runs)
    (line_drawn,) = ax.plot(as_array(x), mean, label=label, **line)
    low, high = np.clip((mean - half, mean + half), *clip) if clip else (mean - half, mean + half)
    ax.fill_between(as_array(x), low, high, color=line_drawn.get_color(), alpha=0.18, linewidth=0)
    return line_drawn
