"""Curves of recorded runs: the numbers of each run, and marks only for measurements that exist; logs side by side."""

import matplotlib.pyplot as plt
import pytest

from grpo_lab.teaching.plots import logs_side_by_side, training_curves


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
