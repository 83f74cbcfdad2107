"""What one push does to a distribution over words: its bars before and after."""

from collections.abc import Sequence

from grpo_lab.checks import check_between
from grpo_lab.plots.intervals import finite
from grpo_lab.plots.style import OKABE_ITO

GREY = "#6E6E6E"


def push_bars(before, after, words: Sequence[str], pushed: int, ax=None):
    """Draw the probability of each word before (an empty bar) and after (a filled one), with the change above it.

    Args:
        before, after: probabilities, one for each word.
        words: names, written below the bars.
        pushed: index of the word whose log-probability was pushed; its bar is blue, the others are orange.
        ax: matplotlib axes to draw into; None makes a figure.

    Returns:
        The matplotlib figure.

    Raises:
        ValueError: for numbers that are not one probability a word, or a `pushed` that is no word's index.
    """
    before, after = finite("before", before), finite("after", after)
    if not before.shape == after.shape == (len(words),):
        shapes = f"{before.shape}, {after.shape}"
        raise ValueError(f"before, after have shapes {shapes}; expected one number for each of the {len(words)} words")
    check_between("pushed", pushed, 0, len(words) - 1)
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=(4.2, 2.9))
    colours = [OKABE_ITO["blue"] if i == pushed else OKABE_ITO["orange"] for i in range(len(words))]
    places = range(len(words))
    ax.bar(places, after, width=0.62, color=colours, alpha=0.85)
    ax.bar(places, before, width=0.76, facecolor="none", edgecolor=GREY, linewidth=1.2, linestyle="--")
    for place, old, new in zip(places, before, after, strict=True):
        ax.text(
            place, max(old, new) + 0.03, f"{round(new - old, 3) + 0.0:+.3f}", ha="center", va="bottom", fontsize=8.5
        )
    ax.set_xticks(list(places), list(words))
    ax.set(ylim=(0, 1.12), yticks=[0, 0.25, 0.5, 0.75, 1])
    ax.grid(axis="x", visible=False)
    return ax.figure
