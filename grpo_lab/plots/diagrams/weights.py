"""Who holds which weights when: policy, old policy and reference over the inner steps of a run."""

from grpo_lab.checks import check_at_least
from grpo_lab.plots.style import OKABE_ITO

WIDTH = 7.2  # inches


def weights_timeline(epochs: int = 6, inner: int = 4, renewed_every: int | None = 3, reference: bool = True):
    """Draw which version of the weights stands behind each log-probability, at every inner step; return the figure.

    The version of the policy counts its steps. The old log-probabilities are those of the version that sampled; of that
    version nothing else is kept, which is why its lane is dashed. The reference is a copy of the weights.

    Args:
        epochs: batches that are sampled, at least 1.
        inner: steps on each batch, at least 1.
        renewed_every: epochs after which the reference becomes a copy of the policy; None if that never happens.
        reference: whether there is one; without a KL penalty there is not.
    """
    for name, value in {"epochs": epochs, "inner": inner, "renewed_every": renewed_every or 1}.items():
        check_at_least(name, value, 1)
    import matplotlib.pyplot as plt

    steps, span = epochs * inner, inner * (renewed_every or epochs)
    lanes = ["policy", "old policy", "reference"][: 3 if reference else 2]
    fig, ax = plt.subplots(figsize=(WIDTH, 0.75 * len(lanes) + 0.65))
    for step in range(steps):
        _bar(ax, 0, step, 1, step, "sky", small=steps > 26)
    for start in range(0, steps, inner):
        _bar(ax, 1, start, inner, start, "orange", dashed=True)
        _copied(ax, start, 1)
    for start in range(0, steps, span) if reference else ():
        _bar(ax, 2, start, min(span, steps - start), start, "green")
        _copied(ax, start, 2)
    kept = ["weights: change at every step", "numbers only: one per token,\nstored when it was sampled"]
    kept.append("weights: a frozen copy" + (",\nrenewed now and then" if renewed_every else ""))
    for lane, name in enumerate(lanes):
        ax.text(-0.3, -lane + 0.02, name, ha="right", va="bottom", fontsize=10, fontweight="bold")
        ax.text(-0.3, -lane - 0.02, kept[lane], ha="right", va="top", fontsize=8, color="#444444", linespacing=1.1)
    ax.set(xlim=(-0.32 * steps, steps + 0.2), ylim=(0.42 - len(lanes), 0.5), yticks=[])
    ax.set_xticks(list(range(0, steps + 1, inner)))
    ax.set_xlabel("inner steps taken; a mark where a new batch is sampled", x=0.62)
    ax.grid(False)
    ax.spines["left"].set_visible(False)
    ax.spines["bottom"].set_bounds(0, steps)
    return fig


def _bar(ax, lane: int, start: int, length: int, version: int, colour: str, dashed=False, small=False) -> None:
    """One version of the weights, in its lane, for as long as it is used."""
    from matplotlib.patches import Rectangle

    edge = {"edgecolor": "#555555", "linestyle": "--" if dashed else "-", "linewidth": 0.9}
    face = "white" if dashed else OKABE_ITO[colour] + "55"
    ax.add_patch(Rectangle((start + 0.04, -lane - 0.25), length - 0.08, 0.5, facecolor=face, **edge))
    if not small:
        ax.text(start + length / 2, -lane, version, ha="center", va="center", fontsize=8.5)


def _copied(ax, step: int, lane: int) -> None:
    """An arrow from the policy, at the step at which its version is taken over."""
    style = {"arrowstyle": "-|>", "color": "black", "linewidth": 1, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 8}
    x = step + (0.28 if lane == 1 else 0.72)
    ax.annotate("", xy=(x, -lane + 0.27), xytext=(x, -0.27), arrowprops=style, zorder=3)
