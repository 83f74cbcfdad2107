"""The batch as the objective sees it, and what a new token sees: what they draw, and what they refuse."""

import pytest

from grpo_lab import plots
from grpo_lab.plots.diagrams.batch import PADDING, short
from grpo_lab.plots.tokens import shade

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def styled():
    with matplotlib.rc_context():
        plots.use_style()
        yield
    plt.close("all")


def colours(ax) -> list[str]:
    return [matplotlib.colors.to_hex(box.get_facecolor()).upper() for box in ax.patches]


def test_a_row_has_the_colour_of_its_advantage_and_grey_padding():
    (ax,) = plots.batch_figure([["<think>", "7", "<|im_end|>"], ["4"]], [1.5, -0.75]).axes
    assert colours(ax) == [shade(1.0)] * 3 + [shade(-0.5)] + [PADDING] * 2
    written = [text.get_text() for text in ax.texts]
    assert {"think", "7", "end", "4", "+1.50", "-0.75"} <= set(written)


@pytest.mark.parametrize(
    ("token", "expected"), [("</answer>", "/answer"), ("\n", "⏎"), ("<|im_end|>", "end"), ("extraordinary", "extrao…")]
)
def test_a_token_is_made_to_fit(token, expected):
    assert short(token) == expected


@pytest.mark.parametrize(
    ("answers", "advantages", "width", "says"),
    [
        ([["a"]], [1.0, 2.0], None, "advantages has 2 numbers; expected one for each of the 1 answers"),
        ([], [], None, "advantages has 0 numbers"),
        ([["a", "b"]], [1.0], 1, "width is 1; expected at least 2"),
        ([["a"]], [float("nan")], None, "advantages holds NaN"),
    ],
)
def test_batch_figure_refuses(answers, advantages, width, says):
    with pytest.raises(ValueError, match=says):
        plots.batch_figure(answers, advantages, width)


def test_with_the_cache_a_token_sees_all_before_it_and_without_it_the_last_one():
    figure = plots.cache_figure(["a", "b", "c"], ["d", "e", "f"], ["d", "-", "-"])
    seen = []
    for ax in figure.axes:
        filled = [box.get_alpha() == 0.75 for box in ax.patches]
        seen.append([[place for place in range(5) if filled[5 * row + place]] for row in range(3)])
    assert seen == [[[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]], [[0, 1, 2], [3], [4]]]


@pytest.mark.parametrize(("prompt", "healthy", "broken"), [([], ["a"], ["b"]), (["a"], [], []), (["a"], ["b"], [])])
def test_cache_figure_refuses(prompt, healthy, broken):
    with pytest.raises(ValueError, match="prompt, healthy, broken hold"):
        plots.cache_figure(prompt, healthy, broken)
