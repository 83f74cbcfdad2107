"""Three words as a picture: a plane for changes of their logits, and a triangle for their probabilities.

The numbers of a score add up to zero, and so do those of every mean of scores: all of them lie in one plane. In it A is
above, B on the left and C on the right.
"""

from collections.abc import Sequence

import numpy as np

from grpo_lab.teaching.plots.intervals import as_array
from grpo_lab.teaching.plots.style import CENTRED, GREY

DIRECTIONS = np.array([[0, 2 / 6**0.5], [-(0.5**0.5), -1 / 6**0.5], [0.5**0.5, -1 / 6**0.5]])  # of A, B and C


def on_plane(vectors) -> np.ndarray:
    """Project vectors of three numbers on the plane of those that add up to zero.

    Args:
        vectors: shape (..., 3); probabilities become points of the triangle.

    Returns:
        shape (..., 2), to the right and up.
    """
    return as_array(vectors) @ DIRECTIONS


def plane_arrows(ax, vectors, names: Sequence[str], **look) -> None:
    """Draw vectors of three numbers as arrows from the origin of the plane, each with its name beyond its tip.

    Args:
        ax: the axes, which lose their frame and their ticks.
        vectors: shape (N, 3); the numbers of each add up to zero.
        names: N texts.
        look: of the arrows, as in `Axes.quiver`.
    """
    tips = on_plane(vectors)
    start = np.zeros(len(tips))
    look = {"width": 0.009, "color": "black"} | look
    ax.quiver(start, start, *tips.T, angles="xy", scale_units="xy", scale=1, **look)
    for name, tip in zip(names, tips, strict=True):
        ax.text(*(1.17 * tip), name, **CENTRED)
    ax.set(xticks=[], yticks=[], aspect="equal")
    ax.spines[:].set_visible(False)


def triangle(ax, names: Sequence[str]) -> None:
    """Draw the triangle of all policies over three words: the likelier a word, the nearer its corner.

    Args:
        ax: the axes, which lose their frame and their ticks.
        names: what stands at the corners above, on the left and on the right.
    """
    ax.fill(*DIRECTIONS.T, facecolor="#EEF3F7", edgecolor=GREY, linewidth=0.8)
    for name, (x, y) in zip(names, DIRECTIONS, strict=True):
        ax.text(x, y + (0.16 if y > 0 else -0.16), name, **CENTRED)
    ax.set(xlim=(-0.95, 0.95), ylim=(-0.72, 1.14), aspect="equal")
    ax.axis("off")
