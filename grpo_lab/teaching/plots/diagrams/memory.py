"""The memory of a step: bars of what is alive at the same time, piece on piece, beside the size of a GPU."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from grpo_lab.base.display import GIB
from grpo_lab.teaching.plots.style import BACKGROUND, CENTRED, GREY, OKABE_ITO

if TYPE_CHECKING:
    from grpo_lab.memory import MemoryPlan

# name: colour, of `OKABE_ITO` or its own, and hatch; no two of one hue are both plain. Other pieces: `OTHER`.
LOOKS = {
    "weights": ("blue", ""),
    "Adam's moments": ("sky", "//"),
    "reference": ("purple", "xx"),
    "gradients": ("green", ""),
    "activations": ("vermillion", "--"),
    "head": ("orange", ""),
    "autocast cache": ("black", "..."),
    "KV cache": ("#F0E442", "\\\\"),  # Okabe and Ito's yellow: too pale for a line, right for a bar
    "sampling": ("#4D4D4D", ""),
}
STRETCHES = ("rollout", "log-probs", "first micro-batch", "each later one", "optimiser")
OTHER = ("#7570B3", "")
FAINT = 0.55  # of a colour: text on a piece stays readable
CLEAR = {"facecolor": BACKGROUND, "edgecolor": "none", "pad": 0.5}  # hides a line behind a text
ROOM = 0.0125  # of the axis, for one letter of a label
TOO_THIN = 0.2  # GiB: what is never thicker over a step is not found in the picture, so it is not named below it


def memory_bars(rows: Mapping[str, Mapping[str, int | float]], gpu_sizes: Sequence[float] = ()):
    """A figure with one bar for each row, made of the pieces that are alive together; the total stands at its end.

    A piece carries its name on the first bar where it is wide enough; what carries none is named below the bars.

    Args:
        rows: name of a bar -> piece -> size in GiB. The first row stands on top; one without pieces is a gap.
        gpu_sizes: memory of GPUs in GB, drawn as lines behind the bars.
    """
    import matplotlib.pyplot as plt

    totals = np.array([sum(pieces.values()) for pieces in rows.values()])
    axis_end = 1.13 * max([*totals, *gpu_sizes])
    fig, ax = plt.subplots(figsize=(7.2, 1.3 + 0.5 * len(rows)))
    patches = {}
    labelled = set()
    offsets = np.zeros(len(rows))
    for piece in dict.fromkeys([*LOOKS, *(piece for pieces in rows.values() for piece in pieces)]):
        sizes, (fill, hatch) = np.array([pieces.get(piece, 0.0) for pieces in rows.values()]), _look(piece)
        if not sizes.any():
            continue
        bar = {"height": 0.62, "color": [fill], "hatch": hatch, "edgecolor": "white", "linewidth": 0.8}
        bars = ax.barh(range(len(rows)), sizes, left=offsets, **bar)
        label = piece.replace(" ", "\n", 1)
        wide = sizes >= max(map(len, label.split("\n"))) * ROOM * axis_end
        names = [label if fits and row == wide.argmax() else "" for row, fits in enumerate(wide)]
        ax.bar_label(bars, names, label_type="center", fontsize=9)
        patches[piece], offsets = bars[0], offsets + sizes
        labelled |= {piece} if wide.any() else set()
    for row, total in enumerate(totals):
        text = f"{total:.1f}" if total else ""
        ax.text(total + 0.01 * axis_end, row, text, va="center", fontsize=9, weight="bold", bbox=CLEAR)
    for gpu_size in gpu_sizes:
        ax.axvline(gpu_size, color=OKABE_ITO["black"], linestyle=":", linewidth=1.2, zorder=0)
        ax.text(
            gpu_size + 0.01 * axis_end,
            1,
            f"{gpu_size:g} GB GPU",
            transform=ax.get_xaxis_transform(),
            va="bottom",
            fontsize=9,
        )
    ax.set_yticks(range(len(rows)), rows)
    ax.set(xlim=(0, axis_end), ylim=(len(rows) - 0.5, -0.5), xlabel="GiB alive at the same time")
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", length=0)
    _name_below(fig, patches, labelled)
    return fig


def memory_over_a_step(plans: Mapping[str, "MemoryPlan"], gpu_sizes: Sequence[float]):
    """A figure with the step of each plan over time, all on one scale: what is alive, piece on piece, and GPU sizes.

    The corners are the plan's moments, drawn at equal distances within a phase; the width of a phase means nothing.
    Each plan has several micro-batches per update.
    """
    import matplotlib.pyplot as plt

    tops = [1.1 * max(plan.peak / GIB, *gpu_sizes[:1]) for plan in plans.values()]
    fig, axes = plt.subplots(len(plans), 1, figsize=(7.2, 6.4), sharex=True, height_ratios=tops, squeeze=False)
    patches, labelled = {}, set()
    for ax, top, (name, plan) in zip(axes[:, 0], tops, plans.items(), strict=True):
        times, table = _corners(plan)
        fill, hatch = zip(*map(_look, table), strict=True)
        areas = ax.stackplot(times, table.values(), colors=fill, hatch=hatch, edgecolor="white", linewidth=0.5)
        patches |= {piece: area for piece, area in zip(table, areas, strict=True) if max(table[piece]) > TOO_THIN}
        heights = np.cumsum(list(table.values()), axis=0)
        for (piece, thick), height in zip(table.items(), heights, strict=True):
            thickest, known = np.flatnonzero(np.array(thick) > 0.9 * max(thick)), piece in labelled
            # a name that is known from above fits into less height, where the piece stays as thick for a while
            if max(thick) > 0.05 * sum(tops) or (known and max(thick) > 0.025 * sum(tops) and len(thickest) > 2):
                corner = thickest[(len(thickest) - 1) // 4]
                ax.text(times[corner], height[corner] - thick[corner] / 2, piece, **CENTRED, fontsize=9)
                labelled.add(piece)
        corner, peak = heights[-1].argmax(), heights[-1].max()
        ax.text(times[corner], peak + 0.2, f"{peak:.1f}", ha="center", va="bottom", weight="bold")
        for gpu_size in (size for size in gpu_sizes if size < top):
            ax.axhline(gpu_size, color="black", linestyle=":", linewidth=1, zorder=0)
            ax.text(5.04, gpu_size, f"{gpu_size:g} GB GPU", va="center", fontsize=9)
        ax.vlines(range(1, 5), 0, top, color=GREY, linewidth=0.6, zorder=0)
        ax.set(xlim=(0, 5), ylim=(0, top), ylabel=f"{name}, GiB")
        ax.set_xticks([0.5, 1.5, 2.5, 3.5, 4.5], STRETCHES)
        ax.tick_params(labelbottom=True)  # below each panel, though they share the axis
    _name_below(fig, patches, labelled)
    return fig


def _corners(plan: "MemoryPlan") -> tuple[list[float], dict[str, list[float]]]:
    """Lay out the moments of a step over time, with the GiB of each piece; the update shows two micro-batches."""
    moments = plan.moments
    full = moments["optimizer"][0] | {"Adam at work": 0}
    empty, (first, last) = full | {"gradients": 0}, (moments["update"][:5], moments["update"][5:])
    times, states = [], []
    rollout = moments["rollout"]
    logprobs = moments["logprobs"]
    optimizer = moments["optimizer"]
    stretches = (empty, rollout), (empty, logprobs), (empty, first), (full, last), (full, optimizer)
    for start, (start_state, states_of_phase) in enumerate(stretches):
        times += [start + 0.94 * index / len(states_of_phase) for index in range(len(states_of_phase) + 1)]
        states += [start_state, *states_of_phase]
    pieces = dict.fromkeys([*LOOKS, *(piece for state in states for piece in state)])
    table = {piece: [state.get(piece, 0) / GIB for state in states] for piece in pieces}
    return times, {piece: sizes for piece, sizes in table.items() if any(sizes)}


def _look(piece: str) -> tuple[tuple, str]:
    """The fill of a piece, light and opaque, and its hatch."""
    from matplotlib.colors import to_rgb

    colour, hatch = LOOKS.get(piece, OTHER)
    faint = 0.25 if colour == "black" else FAINT
    return tuple(1 - faint * (1 - part) for part in to_rgb(OKABE_ITO.get(colour, colour))), hatch


def _name_below(fig, patches: dict, labelled: set[str]) -> None:
    if unlabelled := {piece: patch for piece, patch in patches.items() if piece not in labelled}:
        fig.legend(unlabelled.values(), unlabelled, loc="outside lower center", ncols=4, fontsize=9, handlelength=1.5)
