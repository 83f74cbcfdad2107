"""Diagrams: their texts, colours and sizes are those of the numbers that they show."""

import matplotlib.pyplot
import pytest
import torch

from grpo_lab.config import GRPOConfig
from grpo_lab.memory import GIB, plan_memory
from grpo_lab.models.shapes import shape_config
from grpo_lab.teaching import plots
from grpo_lab.toys.worlds import SmallWorld
from grpo_lab.toys.worlds.comparison import token_weights


def texts(ax) -> list[str]:
    return [text.get_text() for text in ax.texts]


def test_the_weight_of_each_row_is_written_and_padding_is_crossed_out():
    mask = torch.arange(4) < torch.tensor([[2], [4]])
    weights = {name: token_weights(mask, name, 4) for name in ("grpo", "dr_grpo")}
    fig = plots.ragged_batch(weights, mask, ["short", "long"])
    for ax, (name, weight) in zip(fig.axes, weights.items(), strict=True):
        assert ax.get_title() == name
        assert texts(ax) == [f"{value:.3f}" for value in weight[:, 0].tolist()]
        assert len(ax.patches) == 6
        assert len(ax.lines[0].get_xdata()) == 2
    assert [label.get_text() for label in fig.axes[0].get_yticklabels()] == ["short", "long"]


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


BARS = {"rollout": {"weights": 1.0, "KV cache": 0.5}, "update": {"weights": 1.0, "activations": 6.0, "head": 0.02}}


def test_parts_of_the_memory_figure_stand_end_to_end_with_their_names():
    ends: dict[float, float] = {}
    for bar in plots.memory_bars(BARS).axes[0].patches:
        assert bar.get_x() == pytest.approx(ends.get(bar.get_y(), 0.0))
        ends[bar.get_y()] = bar.get_x() + bar.get_width()
    assert sorted(ends.values()) == pytest.approx([1.5, 7.02])
    for gpu_sizes in ((4, 8), ()):
        fig = plots.memory_bars(BARS, gpu_sizes)
        names_on_bars = [text.replace("\n", " ") for text in texts(fig.axes[0])]
        names_below = [text.get_text() for legend in fig.legends for text in legend.get_texts()]
        assert {"weights", "KV cache", "activations", "head"} <= {*names_on_bars, *names_below}
        assert "activations" in names_on_bars
        assert "activations" not in names_below
        assert "head" in names_below
        assert "7.0" in names_on_bars
        assert {f"{size} GB GPU" for size in gpu_sizes} <= {*names_on_bars}


def test_memory_over_a_step_has_the_peaks_of_its_plans():
    several = GRPOConfig(beta=0.1, per_device_train_batch_size=64, gradient_accumulation_steps=4)
    plans = {
        name: plan_memory(shape_config("qwen2"), several, prompt_length=64, precision=name)
        for name in ("fp32-master", "bf16")
    }
    for ax, memory_plan in zip(plots.memory_over_a_step(plans, gpu_sizes=(8,)).axes, plans.values(), strict=True):
        assert f"{memory_plan.peak / GIB:.1f}" in texts(ax)
        assert "8 GB GPU" in texts(ax)
        tops = [path.get_extents().y1 for patch in ax.collections for path in patch.get_paths()]
        assert max(tops[:-4]) == pytest.approx(memory_plan.peak / GIB)  # the last four are the lines between phases
