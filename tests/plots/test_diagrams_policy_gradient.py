"""The prefix tree and the push on a bar chart: what they draw, and what they refuse."""

import pytest
import torch

from grpo_lab import plots
from grpo_lab.plots.diagrams.prefixes import _heights
from grpo_lab.worlds import SmallWorld

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def styled():
    with matplotlib.rc_context():
        plots.use_style()
        yield
    plt.close("all")


def texts(ax) -> list[str]:
    return [text.get_text() for text in ax.texts]


def test_an_edge_of_the_tree_is_as_thick_as_its_token_is_likely():
    world = SmallWorld(vocabulary=2, length=2)
    chances = world.logp().exp().detach()
    (ax,) = plots.prefix_tree(world.sequences, chances, mark={1: "blue"}).axes
    assert texts(ax)[:4] == ["0 0", "1 0", "1 1", f"0: {chances[1, 0]:.2f}"] and texts(ax)[-1] == "0 1"
    widths = [line.get_linewidth() for line in ax.lines if len(line.get_xdata()) == 2]
    drawn = [0, 2, 3, 1]  # the marked path comes last
    assert widths == pytest.approx((0.4 + 4.6 * chances[drawn].flatten()).tolist())


def test_a_prefix_stands_in_the_middle_of_its_completions():
    height = _heights(SmallWorld(vocabulary=2, length=2).sequences.numpy())
    assert height == {(): 1.5, (0,): 2.5, (1,): 0.5, (0, 0): 3, (0, 1): 2, (1, 0): 1, (1, 1): 0}


def test_a_push_shows_both_distributions_and_the_change():
    fig, ax = plt.subplots()
    assert plots.push_bars(torch.tensor([0.5, 0.3, 0.2]).double(), [0.2, 0.3, 0.5], "abc", pushed=2, ax=ax) is fig
    assert texts(ax) == ["-0.300", "+0.000", "+0.300"]
    assert [bar.get_height() for bar in ax.patches] == pytest.approx([0.2, 0.3, 0.5, 0.5, 0.3, 0.2])
    blue = matplotlib.colors.to_rgb(plots.OKABE_ITO["blue"])
    assert [bar.get_facecolor()[:3] == blue for bar in ax.patches[:3]] == [False, False, True]
    assert plots.push_bars([1.0], [1.0], ["a"], pushed=0) is not fig


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda: plots.push_bars([0.5, 0.5], [0.5], "ab", 0), "each of the 2 words"),
        (lambda: plots.push_bars([0.5, 0.5], [0.5, 0.5], "ab", 2), "pushed"),
        (lambda: plots.prefix_tree([[0], [1]], [[0.5, 0.5]]), r"the same \(N, T\) twice"),
        (lambda: plots.prefix_tree([[0]] * 33, torch.ones(33, 1)), "at most 32"),
        (lambda: plots.prefix_tree([[0], [1]], [[0.5], [0.5]], ["one"]), "1 texts"),
    ],
)
def test_what_cannot_be_drawn_is_named(draw, says):
    with pytest.raises(ValueError, match=says):
        draw()
