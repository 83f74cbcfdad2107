"""Diagrams of tokens: the weight of each token of a batch, and the tokens to which a new token attends."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from grpo_lab.teaching.plots.intervals import as_array
from grpo_lab.teaching.plots.style import GREY, OKABE_ITO, without_grid


def ragged_batch(weights: dict, mask, labels: list[str]):
    """Make a figure of the weight of each token in a batch, with a panel for each loss.

    Each row is a completion and each box a token: the darker the box, the larger the weight. Crosses are padding.

    Args:
        weights: The name of a loss -> the weight of every token, shape (B, T). The weight of its first token is written
            at the end of each row.
        mask: True for tokens and False for padding, shape (B, T).
        labels: The B labels of the rows.
    """
    import matplotlib.pyplot as plt

    mask = as_array(mask).astype(bool)
    B, T = mask.shape
    largest = max(as_array(values)[mask].max() for values in weights.values())
    fig, axes = plt.subplots(1, len(weights), figsize=(7.2, 0.7 + 0.34 * B), sharey=True, squeeze=False)
    for ax, (name, values) in zip(axes[0], weights.items(), strict=True):
        values = as_array(values)
        shades = plt.get_cmap("Blues")(0.12 + 0.78 * values[mask] / largest)  # one scale for all panels
        rows, positions = np.nonzero(mask)
        ax.bar(positions, 0.8, 0.9, rows - 0.4, color=shades, snap=False)
        rows, positions = np.nonzero(~mask)
        ax.plot(positions, rows, "x", markersize=min(3.5, 55 / T), color="#BBBBBB")
        for row in range(B):
            ax.text(T - 0.1, row, f"{values[row, mask[row].argmax()]:.3f}", va="center", fontsize=8.5)
        ax.set(xlim=(-0.7, T + 2.4), ylim=(B - 0.4, -0.6), xticks=[])
        ax.set_title(name, fontsize=10)
        ax.set_xlabel("token", fontsize=9)
        without_grid(ax, "left", "bottom")
        ax.tick_params(length=0)
    axes[0, 0].set_yticks(range(B), labels, fontsize=9)
    return fig


def cache_figure(prompt: Sequence[str], healthy: Sequence[str], broken: Sequence[str]):
    """Make a figure of the tokens to which each sampled token attends, with the KV cache (left) and without (right).

    Each row is a sampled token; filled boxes are the earlier tokens to which it attends.

    Args:
        prompt: The tokens of the prompt, or a few words that stand for them.
        healthy: The tokens that were sampled with the cache.
        broken: The tokens that were sampled without the cache, equally many. Each attends only to the token before it.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    fig, axes = plt.subplots(1, 2, figsize=(7.2, 1.15 + 0.34 * len(healthy)), sharey=True)
    sides = {"with the cache": healthy, "cache taken away, input cut": broken}
    for ax, (title, completion), colour in zip(axes, sides.items(), ("blue", "vermillion"), strict=True):
        tokens = [*prompt, *completion[:-1]]
        for row, token in enumerate(completion):
            position = len(prompt) + row
            for column in range(len(tokens)):
                has_all_before = completion is healthy or row == 0
                is_seen = column < position if has_all_before else column == position - 1
                look: dict[str, Any] = {"facecolor": OKABE_ITO[colour] if is_seen else "#FFFFFF"}
                look |= {"edgecolor": GREY, "linewidth": 0.6, "linestyle": "-" if column < position else ":"}
                ax.add_patch(Rectangle((column, row - 0.38), 0.9, 0.76, alpha=0.75 if is_seen else None, **look))
            ax.text(len(tokens) + 0.15, row, f"→ {token}", va="center", fontsize=9, color=OKABE_ITO[colour])
        for column, token in enumerate(tokens):
            # A rotated "-" would look like a comma.
            alignment = {"ha": "center"} if token == "-" else {"rotation": 60, "ha": "left"}
            ax.text(column + 0.45, -0.65, token, va="bottom", fontsize=9, **alignment)
        ax.set(xlim=(-0.1, len(tokens) + 2.6), ylim=(len(healthy) - 0.4, -2.6))
        ax.set_title(title, fontsize=10, color=OKABE_ITO[colour])
        ax.axis("off")
    return fig
