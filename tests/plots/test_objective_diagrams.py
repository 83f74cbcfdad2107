"""The clip regions and the ragged batch: what is coloured and written is what the functions compute."""

import matplotlib.pyplot as plt
import pytest
import torch

from grpo_lab.objective import clipped_surrogate
from grpo_lab.plots import clip_regions, ragged_batch
from grpo_lab.plots.diagrams.clipping import ALIVE
from grpo_lab.worlds.comparison import token_weights


def words_of(ax):
    return [text.get_text() for text in ax.texts]


@pytest.mark.parametrize("ranges", [(0.2, None), (0.2, 0.28), (0.5, 0.9)])
def test_a_region_is_coloured_where_the_surrogate_has_a_slope(ranges):
    fig = clip_regions(*ranges)
    patches = fig.axes[0].patches
    assert len(patches) == 6
    for index, patch in enumerate(patches):
        advantage = torch.tensor([1.0 if index < 3 else -1.0])
        middle = torch.tensor([[patch.get_x() + patch.get_width() / 2]], requires_grad=True)
        (slope,) = torch.autograd.grad(clipped_surrogate(middle, advantage, *ranges).sum(), middle)
        coloured = plt.matplotlib.colors.to_hex(patch.get_facecolor()) == ALIVE.lower()
        assert coloured == (slope.item() != 0)
    plt.close(fig)


def test_a_range_that_the_picture_cannot_hold_is_refused():
    for wrong in ((1.5, None), (0.2, 3.0)):
        with pytest.raises(ValueError, match="epsilon"):
            clip_regions(*wrong)


def test_the_weight_of_each_row_is_written_and_padding_is_crossed_out():
    mask = torch.arange(4) < torch.tensor([[2], [4]])
    weights = {name: token_weights(mask, name, 4) for name in ("grpo", "dr_grpo")}
    fig = ragged_batch(weights, mask, ["short", "long"])
    for ax, (name, weight) in zip(fig.axes, weights.items(), strict=True):
        assert ax.get_title() == name
        assert words_of(ax) == [f"{value:.3f}" for value in weight[:, 0].tolist()]
        assert len(ax.patches) == 6 and len(ax.lines) == 2
    assert [label.get_text() for label in fig.axes[0].get_yticklabels()] == ["short", "long"]
    plt.close(fig)


def test_shapes_that_differ_are_refused():
    mask = torch.ones(2, 3, dtype=torch.bool)
    for weights in ({}, {"grpo": torch.ones(3, 2)}):
        with pytest.raises(ValueError, match="weights has shapes"):
            ragged_batch(weights, mask)
