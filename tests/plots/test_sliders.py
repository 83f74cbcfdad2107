"""Sliders: the strip says to readers what the slider says to those who run, and each frame is drawn from its value."""

import pytest

from grpo_lab.plots import sliders as module
from grpo_lab.plots.sliders import explore

WORDS = {"caption": "Each frame has one line.", "alt": "A line in each frame, at the height of its value"}


@pytest.fixture(autouse=True)
def figures(monkeypatch):
    """The strips that were shown, still open."""
    kept = []
    monkeypatch.setattr(module, "finish", lambda fig, **words: kept.append((fig, words)))
    return kept


def draw(ax, value):
    ax.plot([0, 1], [value, value])
    ax.set_xlabel("time")


def test_the_strip_has_a_frame_for_each_value_titled_and_on_one_scale(figures):
    explore(draw, "beta", [0.0, 0.25, 1.0, 4.0], frames=[0.0, 1.0, 4.0], ylabel="height", **WORDS)
    ((fig, words),) = figures
    assert words == WORDS
    assert [ax.get_title() for ax in fig.axes] == ["beta = 0", "beta = 1", "beta = 4"]
    assert [ax.lines[0].get_ydata()[0] for ax in fig.axes] == [0.0, 1.0, 4.0]
    assert [ax.get_ylabel() for ax in fig.axes] == ["height", "", ""]
    assert len({ax.get_ylim() for ax in fig.axes}) == 1


def test_the_slider_offers_every_value_and_redraws_for_each(monkeypatch, figures):
    ipywidgets = pytest.importorskip("ipywidgets")
    ipython = pytest.importorskip("IPython")
    shown, drawn = [], []
    monkeypatch.setattr(ipython, "get_ipython", lambda: object())
    monkeypatch.setattr(ipython.display, "display", shown.append)
    monkeypatch.setattr(module, "display", lambda bundle, metadata: drawn.append(metadata["image/png"]["alt"]))
    explore(draw, "beta", [0.0, 0.25, 1.0], frames=[0.0, 1.0], **WORDS)
    (handle,) = [widget for box in shown for widget in box.children if isinstance(widget, ipywidgets.SelectionSlider)]
    assert [label for label, _ in handle.options] == ["0", "0.25", "1"]
    handle.value = 0.25
    assert [alt.rpartition("(")[2] for alt in drawn] == ["beta = 1)", "beta = 0.25)"]
