"""The diagram of notebook 06: what a reward reads of a text."""

import pytest

plt = pytest.importorskip("matplotlib.pyplot")

from grpo_lab import plots  # noqa: E402

ROWS = [("one", "12=\n3", [(0, 2), (4, 5)], "right"), ("one", "4", [], "wrong"), ("two", "", [(0, 0)], "empty")]


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_spans_are_marked_where_their_characters_stand():
    (ax,) = plots.marked_texts(ROWS).axes
    letters = {text.get_text(): text.get_position()[0] for text in ax.texts}
    first, second, nothing = ax.patches
    assert first.get_x() < letters["1"] < letters["2"] < first.get_x() + first.get_width() == first.get_x() + 2
    assert second.get_x() < letters["3"] < second.get_x() + 1 and second.get_width() == 1 and nothing.get_width() == 0
    assert len(ax.lines) == len(ax.patches), "a line below each mark: it needs no eye for colour"


def test_a_name_is_written_once_and_a_line_end_is_seen():
    words = [text.get_text() for text in plots.marked_texts(ROWS).axes[0].texts]
    assert words.count("one") == words.count("two") == words.count("⏎") == 1
    assert {"right", "wrong", "empty"} <= set(words)


@pytest.mark.parametrize(("rows", "says"), [([], "empty"), ([("a", "12", [(1, 3)], "")], r"\(1, 3\) in a text of 2")])
def test_what_cannot_be_marked_is_named(rows, says):
    with pytest.raises(ValueError, match=says):
        plots.marked_texts(rows)
