"""Figures of memory: their parts, names and peaks are those of the numbers that they show."""

import pytest

from grpo_lab.config import GRPOConfig
from grpo_lab.memory import GIB, plan_memory
from grpo_lab.models.shapes import shape_config
from grpo_lab.teaching import plots


def texts(ax) -> list[str]:
    return [text.get_text() for text in ax.texts]


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
