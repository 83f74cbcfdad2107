"""Pictures of tokens: a batch with its weights, what a new token sees."""

from collections.abc import Sequence

from grpo_lab.teaching.plots.intervals import as_array
from grpo_lab.teaching.plots.style import GREY, OKABE_ITO, box, without_grid


def ragged_batch(weights: dict, mask, labels: list[str] | None = None):
    """A panel a loss, a row an answer, a box a token: the darker, the more the token weighs; crosses are padding.

    Args:
        weights: name of a loss -> the weight of every token, shape (B, T). The weight is written at the end of a row.
        mask: shape (B, T), true where there is a token.
        labels: of the rows.
    """
    import matplotlib.pyplot as plt

    mask = as_array(mask).astype(bool)
    values = {name: as_array(value) for name, value in weights.items()}
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
                colour = colours(0.12 + 0.78 * value[row, place] / largest)
                box(ax, place - 0.45, row - 0.4, 0.9, 0.8, facecolor=colour, edgecolor="none", snap=False)
            else:
                ax.plot(place, row, "x", markersize=min(3.5, 55 / mask.shape[1]), color="#BBBBBB")
        first = value[row, tokens.argmax()]
        ax.text(mask.shape[1] - 0.1, row, f"{first:.3f}", va="center", fontsize=8.5)
    ax.set(xlim=(-0.7, mask.shape[1] + 2.4), ylim=(len(mask) - 0.4, -0.6), xticks=[])
    without_grid(ax, "left", "bottom")
    ax.tick_params(length=0)


def cache_figure(prompt: Sequence[str], healthy: Sequence[str], broken: Sequence[str]):
    """A figure: for each drawn token, a row, which tokens before it are seen: left with the cache, right without it.

    Args:
        prompt: the tokens of the prompt, or a few words that stand for them.
        healthy: the tokens drawn with the cache.
        broken: as many tokens, drawn where each sees only the one before it.
    """
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, 2, figsize=(7.2, 1.15 + 0.34 * len(healthy)), sharey=True)
    sides = {"with the cache": healthy, "cache taken away, input cut": broken}
    for ax, (title, drawn), colour in zip(axes, sides.items(), ("blue", "vermillion"), strict=True):
        tokens = [*prompt, *drawn[:-1]]
        for row, token in enumerate(drawn):
            before = len(prompt) + row
            for place in range(len(tokens)):
                seen = place < before if drawn is healthy or row == 0 else place == before - 1
                face = OKABE_ITO[colour] if seen else "#FFFFFF"
                line = {"linewidth": 0.6, "linestyle": "-" if place < before else ":"}
                alpha = 0.75 if seen else 1.0
                box(ax, place, row - 0.38, 0.9, 0.76, facecolor=face, edgecolor=GREY, alpha=alpha, **line)
            ax.text(len(tokens) + 0.15, row, f"→ {token}", va="center", fontsize=9, color=OKABE_ITO[colour])
        for place, token in enumerate(tokens):
            turned = {"rotation": 60, "ha": "left"} if token != "-" else {"ha": "center"}  # turned, it is a comma
            ax.text(place + 0.45, -0.65, token, va="bottom", fontsize=9, **turned)
        ax.set(xlim=(-0.1, len(tokens) + 2.6), ylim=(len(healthy) - 0.4, -2.6))
        ax.set_title(title, fontsize=10, color=OKABE_ITO[colour])
        ax.axis("off")
    return fig
