"""Figures for three words: the plane keeps lengths, and corners and arrows have their names next to them."""

import matplotlib.pyplot as plt
import numpy as np
import torch

from grpo_lab.teaching import plots
from grpo_lab.teaching.plots.simplex import DIRECTIONS


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
