"""A ragged batch as a picture: which places hold a token, and how much each token weighs under each denominator."""

from grpo_lab.plots.intervals import finite


def ragged_batch(weights: dict, mask, labels: list[str] | None = None):
    """One panel a loss, one row an answer, one box a token: the darker, the more the token weighs; crosses are padding.

    Args:
        weights: name of a loss -> the weight of every token, shape (B, T). The weight is written at the end of a row.
        mask: shape (B, T), true where there is a token.
        labels: of the rows.

    Returns:
        The matplotlib figure, for `finish`.

    Raises:
        ValueError: where the shapes differ, or there is no loss.
    """
    import matplotlib.pyplot as plt

    mask = finite("mask", mask).astype(bool)
    values = {name: finite(name, value) for name, value in weights.items()}
    if not values or any(value.shape != mask.shape for value in values.values()):
        shapes = {name: value.shape for name, value in values.items()}
        raise ValueError(f"weights has shapes {shapes}; expected at least one loss, each with {mask.shape}")
    fig, axes = plt.subplots(1, len(values), figsize=(7.2, 0.7 + 0.34 * len(mask)), sharey=True, squeeze=False)
    for ax, (name, value) in zip(axes[0], values.items(), strict=True):
        _panel(ax, mask, value, largest=value[mask].max())
        ax.set_title(name, fontsize=10)
        ax.set_xlabel("token", fontsize=9)
    axes[0, 0].set_yticks(range(len(mask)), labels or [f"answer {row + 1}" for row in range(len(mask))], fontsize=9)
    return fig


def _panel(ax, mask, value, largest: float) -> None:
    import matplotlib.pyplot as plt

    colours = plt.get_cmap("Blues")
    for row, tokens in enumerate(mask):
        for place, there in enumerate(tokens):
            if there:
                shade = colours(0.12 + 0.78 * value[row, place] / largest)
                ax.add_patch(
                    plt.Rectangle((place - 0.45, row - 0.4), 0.9, 0.8, facecolor=shade, edgecolor="none", snap=False)
                )
            else:
                ax.plot(
                    place, row, marker="x", markersize=min(3.5, 55 / mask.shape[1]), color="#BBBBBB", linestyle="none"
                )
        first = value[row, tokens.argmax()]
        ax.text(mask.shape[1] - 0.1, row, f"{first:.3f}", va="center", fontsize=8.5)
    ax.set(xlim=(-0.7, mask.shape[1] + 2.4), ylim=(len(mask) - 0.4, -0.6), xticks=[])
    ax.grid(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    ax.tick_params(length=0)
