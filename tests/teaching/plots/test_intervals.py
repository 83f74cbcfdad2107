"""Intervals of means are those of the textbook, and bands show them."""

import statistics

import numpy as np
import pytest
import torch

from grpo_lab.teaching import plots

matplotlib = pytest.importorskip("matplotlib")
plt = pytest.importorskip("matplotlib.pyplot")


def test_mean_interval_is_the_textbook_formula():
    for df in (1, 2, 3, 4, 5, 9, 17, 29, 30, 35, 47, 90, 119, 500, 5000):
        # With t = sqrt(df) tan(angle), the density of Student's t is a power of the cosine.
        angle = np.linspace(0, np.pi / 2, 100_001)
        density = np.cos(angle) ** (df - 1)
        mass = np.concatenate([[0], np.cumsum(density[1:] + density[:-1])])
        inside = np.interp(np.arctan(plots.t_quantile(df) / np.sqrt(df)), angle, mass)
        assert inside / mass[-1] == pytest.approx(0.95, abs=1e-5)
    runs = [[1.0, 5.0], [2.0, 5.0], [4.5, 5.0], [0.5, 5.0]]
    mean, half = plots.mean_interval(runs)
    column = [run[0] for run in runs]
    assert mean == pytest.approx([statistics.mean(column), 5.0])
    assert half == pytest.approx([3.18245 * statistics.stdev(column) / 2, 0.0], abs=1e-4)
    for runs in ([1.0, 2.0], [[1.0, 2.0]], [[1.0], [float("nan")]]):
        with pytest.raises(ValueError, match="runs "):
            plots.mean_interval(runs)


def test_a_band_is_the_mean_and_its_interval_and_ends_where_values_end():
    _, ax = plt.subplots()
    runs = torch.tensor([[0.0, 0.9], [0.2, 1.0]], requires_grad=True)
    line = plots.band(ax, torch.arange(2), runs, "a share")
    plots.band(ax, [0, 1], runs, "clipped", clip=(0, 1))
    mean, half = plots.mean_interval(runs)
    assert line.get_ydata() == pytest.approx(mean)
    assert line.get_label() == "a share"
    free, clipped = (filled.get_paths()[0].get_extents().intervaly for filled in ax.collections)
    assert free == pytest.approx([(mean - half).min(), (mean + half).max()])
    assert list(clipped) == [0, 1]
    assert free[0] < 0
    assert free[1] > 1
    assert matplotlib.colors.same_color(ax.collections[0].get_facecolor()[0][:3], line.get_color())
