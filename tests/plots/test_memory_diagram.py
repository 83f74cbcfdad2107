"""The bars of memory: every piece has its size and a name, on it or below."""

import matplotlib.pyplot as plt
import pytest

from grpo_lab.plots import memory_bars

ROWS = {"rollout": {"weights": 1.0, "KV cache": 0.5}, "update": {"weights": 1.0, "activations": 6.0, "head": 0.02}}


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")


def test_pieces_are_as_long_as_they_are_large_and_stand_end_to_end():
    fig = memory_bars(ROWS)
    bars = [(p.get_y(), p.get_x(), p.get_width()) for p in fig.axes[0].patches]
    ends = {}
    for y, x, width in bars:
        assert x == pytest.approx(ends.get(y, 0.0))
        ends[y] = x + width
    assert sorted(ends.values()) == pytest.approx([1.5, 7.02])


def test_every_piece_is_named_on_it_or_below():
    fig = memory_bars(ROWS, card=8)
    on_it = [text.get_text().replace("\n", " ") for text in fig.axes[0].texts]
    below = [text.get_text() for legend in fig.legends for text in legend.get_texts()]
    for piece in ("weights", "KV cache", "activations", "head"):
        assert piece in on_it + below
    assert "activations" in on_it and "head" in below
    assert "7.0" in on_it and "a card of 8 GiB" in on_it


@pytest.mark.parametrize(("card", "named"), [(4, False), (8, True), (None, True)])
def test_no_name_stands_where_the_line_of_the_card_runs(card, named):
    fig = memory_bars(ROWS, card=card)
    assert ("activations" in [text.get_text() for text in fig.axes[0].texts]) == named
    assert ("activations" in [text.get_text() for legend in fig.legends for text in legend.get_texts()]) != named


def test_a_piece_of_a_name_of_its_own_has_a_look_too():
    fig = memory_bars({"optimizer": {"something else": 2.0}})
    assert "something else" in [text.get_text() for text in fig.axes[0].texts]


@pytest.mark.parametrize("rows", [{}, {"update": {"weights": -1.0}}])
def test_what_is_no_size_is_refused(rows):
    with pytest.raises(ValueError, match=r"rows is .*expected"):
        memory_bars(rows)
