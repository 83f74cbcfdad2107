"""What a new token sees while text is generated: with a cache, and where it was taken away but not missed."""

from collections.abc import Sequence

from grpo_lab.plots.style import OKABE_ITO

GREY, EMPTY = "#9A9A9A", "#FFFFFF"


def cache_figure(prompt: Sequence[str], healthy: Sequence[str], broken: Sequence[str]):
    """Draw for each drawn token, a row, which tokens before it are seen: left with the cache, right without it.

    Args:
        prompt: the tokens of the prompt, or a few words that stand for them.
        healthy: the tokens drawn with the cache.
        broken: as many tokens, drawn where each sees only the one before it.

    Returns:
        A matplotlib figure.

    Raises:
        ValueError: if nothing is drawn, or not the same number of tokens on both sides.
    """
    import matplotlib.pyplot as plt

    if not prompt or not healthy or len(healthy) != len(broken):
        raise ValueError(
            f"prompt, healthy, broken hold {len(prompt)}, {len(healthy)}, {len(broken)} tokens; expected at least one "
            "of each, and as many healthy as broken ones"
        )
    fig, axes = plt.subplots(1, 2, figsize=(7.2, 1.15 + 0.34 * len(healthy)), sharey=True)
    sides = {"with the cache": healthy, "cache taken away, input cut": broken}
    for ax, (title, drawn), colour in zip(axes, sides.items(), ("blue", "vermillion"), strict=True):
        tokens = [*prompt, *drawn[:-1]]
        for row, token in enumerate(drawn):
            before = len(prompt) + row
            for place in range(len(tokens)):
                seen = place < before if drawn is healthy or row == 0 else place == before - 1
                face = OKABE_ITO[colour] if seen else EMPTY
                box = plt.Rectangle((place, row - 0.38), 0.9, 0.76, facecolor=face, edgecolor=GREY, linewidth=0.6)
                box.set(alpha=0.75 if seen else 1.0, linestyle="-" if place < before else ":")
                ax.add_patch(box)
            ax.text(len(tokens) + 0.15, row, f"→ {token}", va="center", fontsize=8.5, color=OKABE_ITO[colour])
        for place, token in enumerate(tokens):
            ax.text(place + 0.45, -0.65, token, rotation=60, ha="left", va="bottom", fontsize=7.5)
        ax.set(xlim=(-0.1, len(tokens) + 2.6), ylim=(len(healthy) - 0.4, -2.6))
        ax.set_title(title, fontsize=10, color=OKABE_ITO[colour])
        ax.axis("off")
    return fig
