"""Intervals of means are those of the textbook, and bands show them."""

import statistics

import numpy as np
import pytest
import torch

from grpo_lab.teaching import plots
from grpo_lab.teaching.plots import logs_side_by_side, training_curves

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


def test_lines_are_metrics_and_marks_are_evaluations():
    whole = {"metrics": {"m": [0.1, 0.4, 0.9]}, "before": {"sampled": {"s": 0.0}}, "after": {"sampled": {"s": 0.8}}}
    cut = {"metrics": {"m": [0.2, 0.3]}, "before": {"sampled": {"s": 0.0}}, "after": None}
    fig, ax = plt.subplots()
    training_curves([ax], {"a": whole, "b": cut}, ("blue", "black"), {"title": ("m", "s")})
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in ax.lines]
    assert drawn == [
        ([1, 2, 3], [0.1, 0.4, 0.9]), ([0], [0.0]), ([4.5], [0.8]), ([1, 2], [0.2, 0.3]), ([0], [0.0]),
    ]  # fmt: skip
    styles = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in ax.lines}
    assert len({colour for colour, *_ in styles}) == 2
    assert ax.get_title() == "title"
    plt.close(fig)


def test_a_panel_without_an_axis_is_an_error():
    with pytest.raises(ValueError):
        training_curves([], {}, (), {"title": ("m", "s")})


def test_logs_stand_in_columns_and_metrics_in_rows():
    logs = {"A": {"m": [0.1, 0.4], "n": [1.0, 10.0]}, "B": {"m": [0.2], "n": [2.0]}}
    beside = {"m": [0.3, 0.3, 0.3], "n": [5.0, 5.0, 5.0]}
    fig = logs_side_by_side(logs, {"m": "label of m", "n": "label of n"}, "n", beside)
    drawn = [[list(line.get_ydata()) for line in ax.lines] for ax in fig.axes]
    assert drawn == [[beside[metric], log[metric]] for metric in ("m", "n") for log in logs.values()]
    assert [ax.get_yscale() for ax in fig.axes] == ["linear", "linear", "log", "log"]
    assert [ax.get_ylabel() for ax in fig.axes] == ["label of m", "", "label of n", ""]
    assert [ax.get_title() for ax in fig.axes] == ["A", "B", "", ""]
    plt.close(fig)
