"""Means over runs with their confidence intervals, as numbers and drawn as bands."""

import numpy as np

from grpo_lab.base.checks import InputError

# The 97.5 % quantile of Student's t by degrees of freedom, as in textbooks. A table is used because this would be the
# only use of scipy, which is a download of 35 MB.
T_TABLE = {
    1: 12.7062, 2: 4.30265, 3: 3.18245, 4: 2.77645, 5: 2.57058, 6: 2.44691, 7: 2.36462, 8: 2.30600, 9: 2.26216,
    10: 2.22814, 11: 2.20099, 12: 2.17881, 13: 2.16037, 14: 2.14479, 15: 2.13145, 16: 2.11991, 17: 2.10982, 18: 2.10092,
    19: 2.09302, 20: 2.08596, 21: 2.07961, 22: 2.07387, 23: 2.06866, 24: 2.06390, 25: 2.05954, 26: 2.05553, 27: 2.05183,
    28: 2.04841, 29: 2.04523, 30: 2.04227, 40: 2.02108, 60: 2.00030, 120: 1.97993, np.inf: 1.95996,
}  # fmt: skip


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
