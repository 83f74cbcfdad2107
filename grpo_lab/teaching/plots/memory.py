"""Figures of memory: stacks of the parts that are allocated at the same time, compared with the memory of GPUs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from grpo_lab.base.display import GIB
from grpo_lab.teaching.plots.style import BACKGROUND, CENTRED, GREY, OKABE_ITO

if TYPE_CHECKING:
    from grpo_lab.memory import MemoryPlan

# The colour of each part of memory (a name in `OKABE_ITO`, or a code) and its hatch. Parts of similar colour have
# different hatches. All other parts look like `OTHER`.
LOOKS = {
    "weights": ("blue", ""),
    "Adam's moments": ("sky", "//"),
    "reference": ("purple", "xx"),
    "gradients": ("green", ""),
    "activations": ("vermillion", "--"),
    "head": ("orange", ""),
    "autocast cache": ("black", "..."),
    "KV cache": ("#F0E442", "\\\\"),  # the yellow of Okabe and Ito, which is too pale for lines but not for bars
    "sampling": ("#4D4D4D", ""),
}
TICK_LABELS = ("rollout", "log-probs", "first micro-batch", "each later one", "optimiser")
OTHER = ("#7570B3", "")
OPACITY = 0.55  # weak enough for text on the colours to be readable
TEXT_BACKGROUND = {"facecolor": BACKGROUND, "edgecolor": "none", "pad": 0.5}  # hides a line behind the text
LETTER_WIDTH = 0.0125  # width of a letter of a label, as a fraction of the axis
# A part that is never larger than this during a step is hardly visible, so it is not named below the figure.
MIN_VISIBLE_GIB = 0.2


def memory_bars(rows: Mapping[str, Mapping[str, int | float]], gpu_sizes: Sequence[float] = ()):
    """Make a figure with a bar for each row: the parts that are allocated at the same time, and their total.

    The name of a part is written on the first bar in which it is wide enough; the other parts are named below the
    bars.

    Args:
        rows: The name of a bar -> the name of a part -> its size in GiB. The first row is on top. A row without parts
            is a gap.
        gpu_sizes: The memory of GPUs in GB, drawn as lines behind the bars.
    """
    import matplotlib.pyplot as plt

    totals = np.array([sum(parts.values()) for parts in rows.values()])
    axis_end = 1.13 * max([*totals, *gpu_sizes])
    fig, ax = plt.subplots(figsize=(7.2, 1.3 + 0.5 * len(rows)))
    patches, labelled = _draw_parts(ax, rows, axis_end)
    for row, total in enumerate(totals):
        text = f"{total:.1f}" if total else ""
        ax.text(total + 0.01 * axis_end, row, text, va="center", fontsize=9, weight="bold", bbox=TEXT_BACKGROUND)
    for gpu_size in gpu_sizes:
        ax.axvline(gpu_size, color=OKABE_ITO["black"], linestyle=":", linewidth=1.2, zorder=0)
        position = {"x": gpu_size + 0.01 * axis_end, "y": 1, "transform": ax.get_xaxis_transform(), "va": "bottom"}
        ax.text(**position, s=f"{gpu_size:g} GB GPU", fontsize=9)
    ax.set_yticks(range(len(rows)), rows)
    ax.set(xlim=(0, axis_end), ylim=(len(rows) - 0.5, -0.5), xlabel="GiB alive at the same time")
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", length=0)
    _name_below(fig, patches, labelled)
    return fig


def _draw_parts(ax, rows: Mapping[str, Mapping[str, int | float]], axis_end: float) -> tuple[dict, set[str]]:
    """Draw the parts of each bar, with the name of a part on the first bar in which it is wide enough.

    Returns:
        The name of a part -> a patch with its look; and the names that are written on a bar.
    """
    patches, labelled = {}, set()
    offsets = np.zeros(len(rows))
    for part in dict.fromkeys([*LOOKS, *(part for parts in rows.values() for part in parts)]):
        sizes, (fill, hatch) = np.array([parts.get(part, 0.0) for parts in rows.values()]), _look(part)
        if not sizes.any():
            continue
        bar = {"height": 0.62, "color": [fill], "hatch": hatch, "edgecolor": "white", "linewidth": 0.8}
        bars = ax.barh(range(len(rows)), sizes, left=offsets, **bar)
        label = part.replace(" ", "\n", 1)
        is_wide = sizes >= max(map(len, label.split("\n"))) * LETTER_WIDTH * axis_end
        first_wide_row = is_wide.argmax() if is_wide.any() else None
        labels = [label if row == first_wide_row else "" for row in range(len(rows))]
        ax.bar_label(bars, labels, label_type="center", fontsize=9)
        patches[part], offsets = bars[0], offsets + sizes
        if is_wide.any():
            labelled.add(part)
    return patches, labelled


def memory_over_a_step(plans: Mapping[str, "MemoryPlan"], gpu_sizes: Sequence[float]):
    """Make a figure of the memory during a training step, with a panel for each plan, all on one scale.

    The allocated parts are stacked. The snapshots of a plan are drawn at equal distances within each phase; the width
    of a phase has no meaning.

    Args:
        plans: The name of a panel -> its plan, with several micro-batches per update.
        gpu_sizes: The memory of GPUs in GB, drawn as lines.
    """
    import matplotlib.pyplot as plt

    tops = [1.1 * max(plan.peak / GIB, *gpu_sizes[:1]) for plan in plans.values()]
    fig, axes = plt.subplots(len(plans), 1, figsize=(7.2, 6.4), sharex=True, height_ratios=tops, squeeze=False)
    patches: dict = {}
    labelled: set[str] = set()
    for ax, top, (name, plan) in zip(axes[:, 0], tops, plans.items(), strict=True):
        times, table = _states_over_time(plan)
        fill, hatch = zip(*map(_look, table), strict=True)
        areas = ax.stackplot(times, table.values(), colors=fill, hatch=hatch, edgecolor="white", linewidth=0.5)
        patches |= {part: area for part, area in zip(table, areas, strict=True) if max(table[part]) > MIN_VISIBLE_GIB}
        heights = np.cumsum(list(table.values()), axis=0)
        _name_parts(ax, times, table, heights, sum(tops), labelled)
        corner, peak = heights[-1].argmax(), heights[-1].max()
        ax.text(times[corner], peak + 0.2, f"{peak:.1f}", ha="center", va="bottom", weight="bold")
        for gpu_size in (size for size in gpu_sizes if size < top):
            ax.axhline(gpu_size, color="black", linestyle=":", linewidth=1, zorder=0)
            ax.text(5.04, gpu_size, f"{gpu_size:g} GB GPU", va="center", fontsize=9)
        ax.vlines(range(1, 5), 0, top, color=GREY, linewidth=0.6, zorder=0)
        ax.set(xlim=(0, 5), ylim=(0, top), ylabel=f"{name}, GiB")
        ax.set_xticks([0.5, 1.5, 2.5, 3.5, 4.5], TICK_LABELS)
        ax.tick_params(labelbottom=True)  # on each panel, since matplotlib labels only the last of a shared axis
    _name_below(fig, patches, labelled)
    return fig


def _name_parts(
    ax, times: list[float], table: dict[str, list[float]], heights: np.ndarray, total_height: float, labelled: set[str]
) -> None:
    """Write the names of the parts of a panel on those that are thick enough, and add them to `labelled`.

    Args:
        ax: The matplotlib axes of the panel.
        times: The times of the corners.
        table: The name of a part -> its size at each corner, in GiB.
        heights: The upper edge of each part at each corner, in GiB.
        total_height: The height of all panels together, in GiB.
        labelled: The names that are already written in this panel or a panel above.
    """
    for (part, sizes), height in zip(table.items(), heights, strict=True):
        corners_at_largest = np.flatnonzero(np.array(sizes) > 0.9 * max(sizes))
        is_thick = max(sizes) > 0.05 * total_height
        # A part that is already named in a panel above may be thinner, if it keeps its size for some time.
        is_thick_enough = max(sizes) > 0.025 * total_height and len(corners_at_largest) > 2
        if is_thick or (part in labelled and is_thick_enough):
            corner = corners_at_largest[(len(corners_at_largest) - 1) // 4]
            ax.text(times[corner], height[corner] - sizes[corner] / 2, part, **CENTRED, fontsize=9)
            labelled.add(part)


def _states_over_time(plan: "MemoryPlan") -> tuple[list[float], dict[str, list[float]]]:
    """Return the times of the snapshots of a step, and the size of each part in GiB at each of these times.

    Of the update, the first micro-batch and a later one are shown.
    """
    snapshots = plan.snapshots
    # What is allocated between phases, with and without gradients.
    with_gradients = snapshots["optimizer"][0] | {"Adam at work": 0}
    without_gradients = with_gradients | {"gradients": 0}
    first_microbatch, later_microbatch = snapshots["update"][:5], snapshots["update"][5:]
    phases = (
        (without_gradients, snapshots["rollout"]),
        (without_gradients, snapshots["logprobs"]),
        (without_gradients, first_microbatch),
        (with_gradients, later_microbatch),
        (with_gradients, snapshots["optimizer"]),
    )
    times, states = [], []
    for start, (start_state, states_of_phase) in enumerate(phases):
        times += [start + 0.94 * index / len(states_of_phase) for index in range(len(states_of_phase) + 1)]
        states += [start_state, *states_of_phase]
    parts = dict.fromkeys([*LOOKS, *(part for state in states for part in state)])
    table = {part: [state.get(part, 0) / GIB for state in states] for part in parts}
    return times, {part: sizes for part, sizes in table.items() if any(sizes)}


def _look(part: str) -> tuple[tuple, str]:
    """Return the light and opaque fill colour of a part, and its hatch."""
    from matplotlib.colors import to_rgb

    colour, hatch = LOOKS.get(part, OTHER)
    opacity = 0.25 if colour == "black" else OPACITY
    return tuple(1 - opacity * (1 - component) for component in to_rgb(OKABE_ITO.get(colour, colour))), hatch


def _name_below(fig, patches: dict, labelled: set[str]) -> None:
    """Add a legend below the figure for the parts whose names are not on them."""
    if unlabelled := {part: patch for part, patch in patches.items() if part not in labelled}:
        fig.legend(unlabelled.values(), unlabelled, loc="outside lower center", ncols=4, fontsize=9, handlelength=1.5)
