"""Diagrams: their texts, colours and sizes are those of the numbers that they show."""

import matplotlib.pyplot
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from grpo_lab.teaching import plots
from grpo_lab.teaching.plots.diagrams import DIRECTIONS
from grpo_lab.toys.worlds import SmallWorld


def texts(ax) -> list[str]:
    return [text.get_text() for text in ax.texts]


def test_an_edge_of_the_tree_is_as_thick_as_its_token_is_likely():
    world = SmallWorld(vocabulary=2, length=2)
    chances = world.logp().exp().detach()
    (ax,) = plots.prefix_tree(world.sequences, chances, ["a", "b", "c", "d"], {1: "blue"}).axes
    assert texts(ax)[:4] == ["a", "c", "d", f"0: {chances[1, 0]:.2f}"]
    assert texts(ax)[-4:] == ["b", "node 0", "node 1", "node 2"]
    widths = [line.get_linewidth() for line in ax.lines if len(line.get_xdata()) == 2]
    drawn = [0, 2, 3, 1]  # the marked path comes last
    assert widths == pytest.approx((0.4 + 4.6 * chances[drawn].flatten()).tolist())


@pytest.mark.parametrize("advantages", [(1.2, -1.2), (0.0, 0.0)])
def test_the_picture_of_a_group_has_its_responses_rewards_and_advantages(advantages):
    figure = plots.group_picture(torch.full((3, 5), 0.2), [0, 2, 4], [[0, 2, 4], [1, 1, 3]], [7.0, 3.0], advantages)
    left, middle, right, _ = figure.axes
    assert left.lines[0].get_xdata().tolist() == [0, 2, 4]
    assert left.images[0].get_array().shape == (3, 5)
    assert [text.get_text() for text in middle.texts] == ["0  2  4", "7", "1  1  3", "3"]
    assert [bar.get_width() for bar in right.patches] == list(advantages)
    assert [text.get_text() for text in right.texts] == ([] if any(advantages) else ["all 0"])


def test_the_search_tree_has_a_disc_for_each_guess_and_a_line_for_each_word():
    """The first guess is 2, or 1 a third as often; then the policy searches on among three numbers."""
    visits = torch.tensor([[0.25, 0.75, 0.0], [0.5, 0.0, 0.25]])
    flows = torch.zeros(1, 3, 2, 3)
    flows[0, 1, 1, 0], flows[0, 1, 0, 2] = 0.5, 0.25
    _, ax = matplotlib.pyplot.subplots()
    plots.search_tree_diagram(ax, visits, flows, "after")
    size = {tuple(disc.get_offsets()[0]): disc.get_sizes()[0] - 1 for disc in ax.collections}
    assert size.keys() == {(1, 0), (2, 0), (1, 1), (3, 1)}
    assert size[2, 0] == pytest.approx(3 * size[1, 0])
    assert size[1, 1] == pytest.approx(2 * size[3, 1])
    lines = {(*line.get_xdata(), *line.get_ydata()): line for line in ax.lines}
    assert lines.keys() == {(2, 1, 0, 1), (2, 3, 0, 1)}
    lower, higher = lines[2, 1, 0, 1], lines[2, 3, 0, 1]
    assert lower.get_linestyle() == "--"
    assert higher.get_linestyle() == "-"
    assert lower.get_color() == plots.OKABE_ITO["vermillion"]
    assert higher.get_color() == plots.OKABE_ITO["blue"]
    assert lower.get_linewidth() == pytest.approx(higher.get_linewidth() * 2**0.5)
    assert "2" in texts(ax)
    assert ax.get_title() == "after"


def test_the_simplex_keeps_lengths_of_centred_vectors_alone():
    scores = torch.eye(3, dtype=torch.float64) - torch.tensor([0.1, 0.4, 0.5], dtype=torch.float64)
    assert np.allclose(np.linalg.norm(plots.on_plane(scores), axis=-1), scores.norm(dim=-1))
    assert np.allclose(plots.on_plane(torch.ones(2, 4, 3)), np.zeros((2, 4, 2)))


def test_probabilities_are_points_of_the_triangle():
    assert np.allclose(plots.on_plane(torch.eye(3)), DIRECTIONS)
    assert np.allclose(plots.on_plane([1 / 3, 1 / 3, 1 / 3]), 0)
    (_, top), (left, _), (right, _) = DIRECTIONS
    assert top > 0
    assert left < 0 < right


def test_arrows_and_corners_have_their_names_beside_them():
    _, (left, right) = plt.subplots(1, 2)
    plots.plane_arrows(left, torch.eye(3), "ABC", color="grey")
    plots.triangle(right, ("A: 2", "B: 1", "C: 0"))
    for ax, names in ((left, ["A", "B", "C"]), (right, ["A: 2", "B: 1", "C: 0"])):
        assert [text.get_text() for text in ax.texts] == names
        for text, corner in zip(ax.texts, DIRECTIONS, strict=True):
            assert np.dot(text.get_position(), corner) > np.dot(corner, corner)  # the text is beyond the corner
