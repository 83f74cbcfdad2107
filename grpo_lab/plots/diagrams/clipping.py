"""The clip as a picture: where a token may still be pushed, and which way, for each ratio and sign of the advantage."""

from grpo_lab.plots.style import CENTRED, OKABE_ITO, arrow, box, without_grid

WIDEST = 2.0  # ratio at the right end
ALIVE, STOPPED = "#CBE6F6", "#E4E4E4"


def clip_regions(epsilon: float = 0.2):
    """Two strips over the ratio, one for each sign of the advantage; coloured where the gradient is alive.

    epsilon: as in `clipped_surrogate`.
    """
    import matplotlib.pyplot as plt

    edges = (0.0, 1 - epsilon, 1 + epsilon, WIDEST)
    fig, ax = plt.subplots(figsize=(7.2, 2.9))
    rows = (
        (1.15, "A > 0\nmake it likelier", 1, ("fell: push up", "push up", "rose enough: stop")),
        (0.0, "A < 0\nmake it rarer", -1, ("fell enough: stop", "push down", "rose: push down")),
    )
    for bottom, title, sign, said in rows:
        for start, end, words in zip(edges[:-1], edges[1:], said, strict=True):
            _region(ax, start, end, bottom, words, sign)
        ax.text(-0.04, bottom + 0.45, title, ha="right", va="center", fontsize=10)
    ax.axvline(1, color="black", linewidth=0.8, linestyle=":", zorder=3)
    ax.set(xlim=(0, WIDEST), ylim=(-0.1, 2.15), yticks=[], xlabel="ratio r: new probability of the token over old")
    ax.set_xticks(edges, ["0", f"1 − ε\n{1 - epsilon:.4g}", f"1 + ε high\n{1 + epsilon:.4g}", f"{WIDEST:g}"])
    without_grid(ax, "left")
    return fig


def _region(ax, start: float, end: float, bottom: float, words: str, sign: int) -> None:
    """One box: its colour says whether the gradient is alive, its arrow which way the token is pushed."""
    alive = "stop" not in words
    style = {"facecolor": ALIVE} if alive else {"facecolor": STOPPED, "hatch": "///"}
    box(ax, start, bottom, end - start, 0.9, edgecolor="white", linewidth=1.5, **style)
    middle = (start + end) / 2
    narrow = end - start < 0.6
    backing = {"bbox": {"facecolor": ALIVE if alive else "white", "edgecolor": "none", "pad": 1.5}, "zorder": 4}
    words = words.replace(" ", "\n", 1) if narrow else words
    ax.text(middle, bottom + 0.62, words, **CENTRED, fontsize=9.5, **backing)
    if alive:
        reach, colour = 0.11 * sign, OKABE_ITO["blue" if sign > 0 else "vermillion"]
        arrow(ax, (middle - reach, bottom + 0.2), (middle + reach, bottom + 0.2), colour, linewidth=2)
