"""Diagrams of the loop of GRPO and of policies: the tree of their completions, a group, and policies over three words.

Policies over three words are drawn as a plane for changes of their logits, and as a triangle for their probabilities.
The three numbers of a score function add up to zero, and so do those of a mean of scores. So all these vectors lie in
one plane. In the figures A is at the top, B on the left and C on the right.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from grpo_lab.base.checks import check_choice
from grpo_lab.teaching.plots.curves import as_array
from grpo_lab.teaching.plots.style import CENTRED, GREY, OKABE_ITO, arrow, finish, without_grid

STAGES = ("prompts", "group", "reward", "advantage", "log-probs", "objective", "step")
PALE = "#F0F0F0"
BOX_DISTANCE, BOX_WIDTH, BOX_HEIGHT = 1.6, 1.36, 0.84  # the distance is from centre to centre
THINNEST, THICKEST = 0.4, 5.0  # line widths of edges with probability 0 and 1, in points
TEXT_BACKGROUND = {"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.9}  # hides a line behind the text
MIN_FLOW = 0.002  # smallest fraction of the flow out of a turn for which a line is drawn
NODE = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": "grey", "linewidth": 0.6}
# The directions of the words A, B and C in the plane; also the corners of the triangle.
DIRECTIONS = np.array([[0, 2 / 6**0.5], [-(0.5**0.5), -1 / 6**0.5], [0.5**0.5, -1 / 6**0.5]])


def loop_diagram(here: str | Iterable[str] = (), met: Iterable[str] = STAGES, *, caption: str | None = None) -> None:
    """Show the loop of GRPO with the stages of a lesson marked.

    Args:
        here: One or several of the `STAGES` that the lesson is about; they are coloured.
        met: The stages of earlier lessons. All other stages are pale and dashed.
        caption: The caption of the figure; None for the usual sentence, "You are here: ...".
    """
    here, met = ((stages,) if isinstance(stages, str) else tuple(stages) for stages in (here, met))
    for stage in here + met:
        check_choice("stage", stage, STAGES)
    alt = f"The loop of GRPO, a row of seven boxes: {', '.join(STAGES)}; an arrow leads from the last back to the first"
    usual = "The loop of GRPO. The policy that a step leaves behind writes the next answers."
    if here:
        alt += f"; coloured: {', '.join(here)}"
        usual = f"You are here: {', '.join(here)}."
        if later := [stage for stage in STAGES if stage not in here + met]:
            alt += f"; still to come, dashed: {', '.join(later)}"
            usual += " The dashed boxes come later."
    finish(_row(here, met), caption=caption or usual, alt=alt)


def _row(current: tuple[str, ...], met: tuple[str, ...]):
    """Make the figure: a row of boxes, and an arrow from the last one back to the first."""
    import matplotlib.pyplot as plt

    last, floor = BOX_DISTANCE * (len(STAGES) - 1), -0.75
    # The style sets this layout, too, but may not be in use yet.
    fig, ax = plt.subplots(figsize=(7.2, 0.95), layout="constrained")
    ax.set(xlim=(-0.85, last + 0.85), ylim=(-0.95, 0.75))
    ax.axis("off")
    for index, stage in enumerate(STAGES):
        _box(ax, BOX_DISTANCE * index, stage, stage in current, stage in met)
        if index:
            arrow(ax, (BOX_DISTANCE * (index - 1) + BOX_WIDTH / 2, 0.0), (BOX_DISTANCE * index - BOX_WIDTH / 2, 0.0))
    # The arrow from the step back to the prompts: down, to the left below the boxes, and up.
    ax.plot([last, last, 0], [-BOX_HEIGHT / 2, floor, floor], color=GREY, linewidth=1.2, linestyle="-")
    arrow(ax, (0, floor), (0, -BOX_HEIGHT / 2))
    return fig


def _box(ax, x: float, stage: str, is_current: bool, is_met: bool) -> None:
    from matplotlib.patches import FancyBboxPatch

    look: dict[str, Any] = {"facecolor": PALE, "edgecolor": GREY, "linewidth": 0.8}
    if is_current:
        look = {"facecolor": "#D9ECF7", "edgecolor": OKABE_ITO["blue"], "linewidth": 1.6}
    elif not is_met:
        look |= {"facecolor": "none", "linestyle": (0, (3, 2))}
    rounded = "round,pad=0,rounding_size=0.12"
    ax.add_patch(FancyBboxPatch((x - BOX_WIDTH / 2, -BOX_HEIGHT / 2), BOX_WIDTH, BOX_HEIGHT, boxstyle=rounded, **look))
    text_look = {"weight": "bold" if is_current else "normal", "color": "black" if is_current or is_met else GREY}
    ax.text(x, 0, stage, **CENTRED, fontsize=9, **text_look)


def prefix_tree(sequences, token_probabilities, leaf_labels: Sequence[str], mark: Mapping[int, str]):
    """Make a figure of the tree of all completions, from the empty prefix on the left to full completions on the right.

    Each edge is a token: the larger its probability given its prefix, the thicker the edge. Inner nodes are numbered.

    Args:
        sequences: All completions, shape (N, T), in lexicographic order, at most 32.
        token_probabilities: The probability of each token given the tokens before it, shape (N, T).
        leaf_labels: The N texts to the right of the tree.
        mark: The row of a completion to highlight -> the name of its colour in `OKABE_ITO`. On the edges of its path
            the tokens and their probabilities are written.
    """
    import matplotlib.pyplot as plt

    sequences, probabilities = np.asarray(sequences), as_array(token_probabilities)
    N, T = sequences.shape
    height = _heights(sequences)
    fig, ax = plt.subplots(figsize=(7.2, max(2.4, 0.175 * N + 0.5)))
    look: dict[str, Any]
    order = [row for row in range(N) if row not in mark] + list(mark)  # marked paths are drawn last, on top
    for row in order:
        colour = OKABE_ITO[mark[row]] if row in mark else "#B0B0B0"
        for t in range(T):
            ys = height[tuple(sequences[row, :t])], height[tuple(sequences[row, : t + 1])]
            width = THINNEST + (THICKEST - THINNEST) * probabilities[row, t]
            ax.plot([t, t + 1], ys, color=colour, linewidth=width, linestyle="-", solid_capstyle="round", zorder=2)
            if row in mark:
                look = {"fontsize": 9, "color": colour, "weight": "bold", "zorder": 4, "bbox": TEXT_BACKGROUND}
                ax.text(t + 0.5, sum(ys) / 2, f"{sequences[row, t]}: {probabilities[row, t]:.2f}", **CENTRED, **look)
        colour, weight = (colour, "bold") if row in mark else ("black", "normal")
        look = {"va": "center", "fontsize": 9, "color": colour, "weight": weight}
        ax.text(T + 0.06, height[tuple(sequences[row])], leaf_labels[row], **look)
    inner_prefixes = sorted((prefix for prefix in height if len(prefix) < T), key=lambda prefix: (len(prefix), prefix))
    for number, prefix in enumerate(inner_prefixes):  # the root first, then column by column
        ax.text(
            len(prefix), height[prefix], f"node {number}", **CENTRED, fontsize=8.5, color="dimgrey", zorder=3, bbox=NODE
        )
    ax.set(xlim=(-0.25, T + 1.6), ylim=(-0.8, N - 0.2), yticks=[])
    tick_labels = [f"{t} token{'s' if t > 1 else ''}" for t in range(1, T + 1)]
    ax.set_xticks(range(T + 1), ["nothing\nwritten", *tick_labels])
    without_grid(ax, "left", "bottom")
    return fig


def group_picture(probabilities, correct: Sequence[int], responses, rewards, advantages):
    """Make a figure of one group of a toy whose responses are a few numbers: from the policy to its advantages.

    On the left is the policy as a heat map, with a frame around the correct number of each position. In the middle are
    the responses with their rewards, and on the right their advantages as bars: positive blue, negative vermillion.

    Args:
        probabilities: The probability of each number at each position, shape (T, V).
        correct: The T correct numbers.
        responses: The sampled numbers, shape (G, T).
        rewards: The reward of each response, shape (G).
        advantages: The advantage of each response, shape (G).
    """
    import matplotlib.pyplot as plt

    rewards, advantages = as_array(rewards), as_array(advantages)
    probabilities, G = as_array(probabilities), len(rewards)
    T, V = probabilities.shape
    fig, (left, middle, right) = plt.subplots(1, 3, figsize=(7.2, 3.5), width_ratios=(4.6, 3, 2.6))
    fig.set_layout_engine("constrained", rect=(0, 0.08, 1, 0.92))  # leaves space for the text below
    shades = left.imshow(probabilities, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    fig.colorbar(shades, ax=left, label="probability", ticks=(0, 0.5, 1), aspect=30, pad=0.02)
    for colour, size in (("black", 15), ("white", 12)):  # visible on pale and on dark cells
        frame = {"markerfacecolor": "none", "markeredgecolor": colour, "markeredgewidth": 1.5, "markersize": size}
        left.plot(correct, range(T), "s", **frame)
    left.set(xlabel="number", ylabel="position", xticks=range(V), yticks=range(T), yticklabels=range(1, T + 1))
    for row, (response, reward) in enumerate(zip(responses, rewards, strict=True)):
        middle.text(0.4, row, "  ".join(str(int(number)) for number in response), **CENTRED, family="monospace")
        middle.text(1.25, row, f"{reward:.0f}", **CENTRED)
    middle.set(xlim=(-0.2, 1.5), ylim=(G - 0.4, -0.6))
    middle.axis("off")
    right.barh(range(G), advantages, color=[OKABE_ITO["blue" if a > 0 else "vermillion"] for a in advantages])
    right.axvline(0, color="black", linewidth=1)
    if not advantages.any():
        right.text(0, (G - 1) / 2, "all 0", **CENTRED, bbox={"facecolor": "white", "edgecolor": "none"})
    right.set(xlim=(-2.7, 2.7), ylim=(G - 0.4, -0.6), yticks=[], xlabel="advantage")
    for ax, title in ((left, "1 policy"), (middle, "2 sample   3 reward"), (right, "4 advantage")):
        ax.set_title(title, fontsize=10)
        ax.grid(visible=False)
    fig.text(0.5, 0.035, "5 update: blue more likely, orange less likely; then again from 1", **CENTRED)
    return fig


def search_tree_diagram(ax, visits, flows, title: str = "") -> None:
    """Draw the tree of a policy's guesses: a row for each turn, with the numbers from left to right.

    Each guess is a disc: the more frequent it is in its turn, the larger and darker the disc. Lines lead to the next
    guess; more frequent ones are wider. They are solid and blue after "higher", dashed and vermillion after "lower".

    Args:
        ax: The matplotlib axes.
        visits: How often each number is guessed in each turn, shape (K, n), from `grpo_lab.toys.guess.search_tree`.
        flows: How often each guess of a turn, with each of the two words, is followed by each guess of the next turn;
            shape (K - 1, n, 2, n), from the same function.
        title: The title above the tree.
    """
    visits, flows = as_array(visits), as_array(flows)
    turns, numbers = visits.shape
    for k, guess, word, next_guess in np.argwhere(flows > MIN_FLOW * flows.sum(axis=(1, 2, 3), keepdims=True)):
        share = flows[k, guess, word, next_guess] / flows[k].max()
        colour, style = (OKABE_ITO["blue"], "-") if word == 0 else (OKABE_ITO["vermillion"], "--")
        line = {"color": colour, "linestyle": style, "linewidth": 3 * share**0.5, "alpha": 0.15 + 0.85 * share}
        ax.plot([guess + 1, next_guess + 1], [k, k + 1], zorder=1, **line)
    for k, guess in np.argwhere(visits > 0):
        share = visits[k, guess] / visits[k].sum()
        size = (share / max(visits[k].max() / visits[k].sum(), 1 / numbers)) ** 0.5
        darkness = 1 - 0.85 * min(1.0, size)
        ax.scatter(guess + 1, k, s=230 * size**2 + 1, color=str(darkness), zorder=2, linewidths=0)
        is_wider_than_number = size > (0.6 if guess + 1 < 10 else 0.88)
        if is_wider_than_number:
            ax.text(guess + 1, k - 0.01, guess + 1, **CENTRED, fontsize=9, color="white", zorder=3)
    ax.set(xlim=(0.3, numbers + 0.7), ylim=(turns - 0.6, -0.45), title=title)
    ax.set_yticks(range(turns), [f"guess {k + 1}" for k in range(turns)])
    ax.set_xticks(range(1, numbers + 1))
    without_grid(ax, "left", "bottom")
    ax.tick_params(length=0)


def _heights(sequences: np.ndarray) -> dict[tuple[int, ...], float]:
    """Return the height of each prefix: the mean height of the completions that begin with it; the first is on top."""
    N, T = sequences.shape
    leaf_heights: dict[tuple[int, ...], list[int]] = {}
    for row, sequence in enumerate(sequences):
        for t in range(T + 1):
            leaf_heights.setdefault(tuple(sequence[:t]), []).append(N - 1 - row)
    return {prefix: sum(heights) / len(heights) for prefix, heights in leaf_heights.items()}


def on_plane(vectors) -> np.ndarray:
    """Project vectors of three numbers onto the plane in which the numbers add up to zero.

    Args:
        vectors: The vectors, shape (..., 3). Probabilities become points of the triangle.

    Returns:
        The coordinates in the plane, to the right and up, shape (..., 2).
    """
    return as_array(vectors) @ DIRECTIONS


def plane_arrows(ax, vectors, names: Sequence[str], **look) -> None:
    """Draw vectors of three numbers as arrows from the origin of the plane, each with its name beyond its tip.

    Args:
        ax: The matplotlib axes. Their frame and ticks are removed.
        vectors: The vectors, shape (N, 3); the three numbers of each add up to zero.
        names: The N texts beyond the tips.
        look: Settings of the arrows, as in `Axes.quiver`.
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
    """Draw the triangle of all policies over three words: the more probable a word, the nearer its corner.

    Args:
        ax: The matplotlib axes. Their frame and ticks are removed.
        names: The texts at the upper, the left and the right corner.
    """
    ax.fill(*DIRECTIONS.T, facecolor="#EEF3F7", edgecolor=GREY, linewidth=0.8)
    for name, (x, y) in zip(names, DIRECTIONS, strict=True):
        ax.text(x, y + (0.16 if y > 0 else -0.16), name, **CENTRED)
    ax.set(xlim=(-0.95, 0.95), ylim=(-0.72, 1.14), aspect="equal")
    ax.axis("off")
