"""The prefix tree of a small language: every completion is a path, and at every node the policy has a softmax."""

from collections.abc import Mapping, Sequence

import numpy as np

from grpo_lab.plots.intervals import finite
from grpo_lab.plots.style import OKABE_ITO

THIN, THICK = 0.4, 5.0  # widths of an edge of probability 0 and 1, in points
GREY = "#B0B0B0"
MOST_LEAVES = 32  # that have room for a label each


def prefix_tree(
    sequences,
    token_probabilities,
    leaf_labels: Sequence[str] | None = None,
    mark: Mapping[int, str] | None = None,
):
    """Draw the tree of all completions, from the empty prefix on the left to the whole completions on the right.

    An edge is one token. The more likely it is after its prefix, the thicker the edge.

    Args:
        sequences: all completions, shape (N, T), in lexicographic order, at most 32.
        token_probabilities: of each token after those before it, shape (N, T).
        leaf_labels: N texts to the right of the tree; None writes the tokens.
        mark: row of `sequences` -> name of a colour in `OKABE_ITO`; the token and its probability are written on each
            edge of such a path.

    Returns:
        The matplotlib figure.

    Raises:
        ValueError: for shapes that do not fit together, or more completions than there is room for.
    """
    import matplotlib.pyplot as plt

    sequences, chances = np.asarray(sequences), finite("token_probabilities", token_probabilities)
    if sequences.ndim != 2 or sequences.shape != chances.shape or len(sequences) > MOST_LEAVES:
        raise ValueError(
            f"sequences, token_probabilities have shapes {sequences.shape}, {chances.shape}; "
            f"expected the same (N, T) twice, N at most {MOST_LEAVES}"
        )
    labels = [" ".join(map(str, row)) for row in sequences] if leaf_labels is None else list(leaf_labels)
    if len(labels) != len(sequences):
        raise ValueError(
            f"leaf_labels has {len(labels)} texts; expected one for each of the {len(sequences)} completions"
        )
    N, T = sequences.shape
    height = _heights(sequences)
    fig, ax = plt.subplots(figsize=(7.2, max(2.4, 0.155 * N + 0.5)))
    marked = dict(mark or {})
    order = [row for row in range(N) if row not in marked] + list(marked)  # marked paths on top
    for row in order:
        colour = OKABE_ITO[marked[row]] if row in marked else GREY
        for t in range(T):
            ys = height[tuple(sequences[row, :t])], height[tuple(sequences[row, : t + 1])]
            width = THIN + (THICK - THIN) * chances[row, t]
            ax.plot([t, t + 1], ys, color=colour, linewidth=width, linestyle="-", solid_capstyle="round", zorder=2)
            if row in marked:
                ax.text(
                    t + 0.5,
                    sum(ys) / 2,
                    f"{sequences[row, t]}: {chances[row, t]:.2f}",
                    ha="center",
                    va="center",
                    fontsize=8.5,
                    color=colour,
                    weight="bold",
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.9},
                    zorder=4,
                )
        colour, weight = (colour, "bold") if row in marked else ("black", "normal")
        ax.text(
            T + 0.06, height[tuple(sequences[row])], labels[row], va="center", fontsize=7.5, color=colour, weight=weight
        )
    for prefix, y in height.items():
        if len(prefix) < T:
            ax.plot(len(prefix), y, "o", color="black", markersize=4, zorder=3)
    ax.set(xlim=(-0.25, T + 1.15), ylim=(-0.8, N - 0.2), yticks=[])
    ax.set_xticks(
        range(T + 1), ["nothing\nwritten"] + [f"{t} token{'s' if t > 1 else ''}" for t in range(1, T)] + ["all"]
    )
    ax.grid(visible=False)
    ax.spines[["left", "bottom"]].set_visible(False)
    return fig


def _heights(sequences: np.ndarray) -> dict[tuple[int, ...], float]:
    """Where each prefix stands: the middle of the completions that begin with it, the first of them on top."""
    N, T = sequences.shape
    places: dict[tuple[int, ...], list[int]] = {}
    for row, sequence in enumerate(sequences):
        for t in range(T + 1):
            places.setdefault(tuple(sequence[:t]), []).append(N - 1 - row)
    return {prefix: sum(found) / len(found) for prefix, found in places.items()}
