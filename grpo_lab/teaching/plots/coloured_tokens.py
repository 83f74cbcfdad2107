"""Tokens of a text, each on a background whose colour shows its value, such as its advantage."""

import html
from collections.abc import Sequence

import numpy as np

from grpo_lab.base.checks import InputError
from grpo_lab.base.display import View
from grpo_lab.base.language import _
from grpo_lab.teaching.plots.intervals import finite
from grpo_lab.teaching.plots.style import BACKGROUND, OKABE_ITO


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
