"""Figures of tokens: coloured by value, such as an advantage; weighted in a batch; attending to others in a cache."""

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from grpo_lab.base.checks import InputError
from grpo_lab.base.display import View
from grpo_lab.base.language import _
from grpo_lab.teaching.plots.curves import as_array, finite
from grpo_lab.teaching.plots.style import BACKGROUND, GREY, OKABE_ITO, without_grid


def token_heat(tokens: Sequence[str], values, limit: float | None = None, signs: bool = True) -> View:
    """Make a view of tokens in a row, each on the colour of its value and followed by that value.

    Values above zero are blue and values below zero orange; the larger the absolute value, the stronger the colour.
    The sign is written as well, for colour-blind readers and for web pages that remove colours.

    Args:
        tokens: The decoded tokens; spaces and line ends are made visible.
        values: A number for each token, such as its advantage or log-probability.
        limit: The absolute value that gets the full colour; None means the largest one in `values`.
        signs: Whether values have signs. With False, for probabilities for example, there are no plus signs, and the
            legend begins at zero.

    Raises:
        ValueError: unless there is one finite value for each token.
    """
    values = finite("values", values)
    if values.shape != (len(tokens),):
        raise InputError(f"values has shape {values.shape}; expected one number for each of the {len(tokens)} tokens")
    limit = float(limit or np.abs(values).max(initial=0) or 1)
    value_texts = [value_text(value, "+" if signs else "") for value in values]
    token_htmls = [
        _token(token, text, value / limit) for token, text, value in zip(tokens, value_texts, values, strict=True)
    ]
    shares = (-1.0, -0.5, 0.0, 0.5, 1.0) if signs else (0.0, 0.5, 1.0)
    legend = " ".join(patch(value_text(share * limit, "+" if signs else ""), share) for share in shares)
    box = f"background-color:{BACKGROUND};color:#000000;padding:8px 12px;border:1px solid #CCCCCC;line-height:2.1"
    markup = f'<div style="{box}">{"".join(token_htmls)}<br>{_("value:")} {legend}</div>'
    text = " ".join(f"{visible(token)}[{value}]" for token, value in zip(tokens, value_texts, strict=True))
    return View(markup, text, "text/html")


def _token(token: str, value: str, share: float) -> str:
    """Return the HTML of a token with its value."""
    line_end = "<br>" if token.endswith("\n") else ""
    return f"{patch(visible(token), share)}<sub>{value}</sub> {line_end}"


def patch(text: str, share: float) -> str:
    """Return the HTML of a text on the colour of its value, as a share of the limit."""
    # In <code> formulas are not typeset: a token may be a dollar sign.
    style = f"background-color:{shade(share)};color:#000000;padding:2px 3px;border-radius:3px"
    return f'<code style="{style}">{html.escape(text)}</code>'


def shade(share: float) -> str:
    """Return the colour of a share: white for 0, sky blue for 1, orange for -1, all readable under black text."""
    full_colour = OKABE_ITO["sky" if share > 0 else "orange"]
    strength = min(abs(share), 1.0)
    rgb = [round(255 + strength * (int(full_colour[i : i + 2], 16) - 255)) for i in (1, 3, 5)]
    return "#" + "".join(f"{component:02X}" for component in rgb)


def visible(token: str) -> str:
    """Return a token with visible signs for white space, and for an empty token."""
    return token.replace(" ", "·").replace("\n", "⏎").replace("\t", "⇥") or "∅"


def value_text(value: float, sign: str) -> str:
    """Return a value with two decimals; `sign` is "+" for a plus sign before positive values, or ""."""
    return f"{value:{sign}.2f}" if round(value, 2) else "0"


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
