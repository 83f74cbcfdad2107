"""The picture of the loop: every station in its box, the right ones coloured, and no word across another's."""

import itertools

import pytest

from grpo_lab.plots import use_style
from grpo_lab.plots.diagrams import loop

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def styled():
    with matplotlib.rc_context():
        use_style()
        yield
    plt.close("all")


def coloured(fig) -> list[str]:
    ax = fig.axes[0]
    return [station for station, box in zip(loop.STATIONS, ax.patches, strict=False) if box.get_linewidth() > 1]


@pytest.mark.parametrize("here", [("advantage",), ("prompts", "step")])
def test_you_are_here(here):
    assert coloured(loop._small(here)) == [station for station in loop.STATIONS if station in here]


@pytest.mark.parametrize("style", [use_style, matplotlib.rcdefaults])  # a notebook may draw it before it sets the style
@pytest.mark.parametrize("draw", [loop._large, lambda: loop._small(("group",)), lambda: loop._small(("advantage",))])
def test_no_two_words_overlap_and_each_station_stands_within_its_box(draw, style):
    style()
    fig = draw()
    fig.canvas.draw()
    ax = fig.axes[0]
    extents = {text: text.get_window_extent() for text in ax.texts if text.get_text()}
    for one, other in itertools.combinations(extents, 2):
        assert not extents[one].overlaps(extents[other]), (one.get_text(), other.get_text())
    for station, box in zip(loop.STATIONS, ax.patches, strict=False):
        (text,) = [text for text in extents if text.get_text() == station]
        assert box.get_window_extent().x0 <= extents[text].x0 and extents[text].x1 <= box.get_window_extent().x1


def test_another_station_is_refused():
    with pytest.raises(ValueError, match="here is 'rewards'; expected one of 'prompts', 'group', 'reward'"):
        loop.loop_diagram(here="rewards")


def test_what_is_shown_names_the_place(monkeypatch):
    kept = []
    monkeypatch.setattr(loop, "finish", lambda fig, **words: kept.append(words))
    loop.loop_diagram(here=("reward", "advantage"))
    assert kept[0]["caption"] == "You are here: reward, advantage."
    assert kept[0]["alt"].endswith("coloured: reward, advantage")
