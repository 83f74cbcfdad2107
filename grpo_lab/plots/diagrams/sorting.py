"""What a policy of the sorting world answers: how likely each number is at each position, as a map."""

from collections.abc import Mapping, Sequence

from grpo_lab.plots.intervals import finite
from grpo_lab.plots.style import OKABE_ITO

WIDTH = 7.2  # inches


def position_map(panels: Mapping[str, Sequence], right: Sequence[int]):
    """Draw probabilities as heat maps side by side, positions against numbers, with the right ones framed.

    Args:
        panels: title -> probabilities, shape (T, V); each row sums to 1.
        right: the number that belongs at each of the T positions.

    Returns:
        The matplotlib figure.

    Raises:
        ValueError: naming the panel whose shape does not fit.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    maps = {title: finite(title, values) for title, values in panels.items()}
    for title, values in maps.items():
        if values.ndim != 2 or len(values) != len(right):
            raise ValueError(f"panels[{title!r}] has shape {values.shape}; expected ({len(right)}, numbers)")
    fig, axes = plt.subplots(1, len(maps), figsize=(WIDTH, 2.4), sharey=True, squeeze=False)
    for ax, (title, values) in zip(axes[0], maps.items(), strict=True):
        drawn = ax.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        for t, number in enumerate(right):
            frame = {"fill": False, "edgecolor": OKABE_ITO["vermillion"], "linewidth": 1.8}
            ax.add_patch(Rectangle((number - 0.47, t - 0.46), 0.94, 0.92, **frame))
        for t, v in zip(*(values >= 0.145).nonzero(), strict=True):
            said = f"{values[t, v]:.1f}".lstrip("0") if values[t, v] < 0.95 else "1"
            ax.text(v, t, said, ha="center", va="center", fontsize=8, color="white" if values[t, v] > 0.6 else "black")
        ax.set(title=title, xlabel="number", xticks=range(values.shape[1]), yticks=range(len(right)))
        ax.set_yticklabels([str(t + 1) for t in range(len(right))])
        ax.grid(False)
    axes[0, 0].set_ylabel("position in the response")
    fig.colorbar(drawn, ax=axes[0].tolist(), label="probability", fraction=0.03, pad=0.02)
    return fig
