"""Tokens on colours that tell their values, such as an advantage each."""

import html
from collections.abc import Sequence

import numpy as np

from grpo_lab.base.checks import InputError
from grpo_lab.base.display import View
from grpo_lab.base.language import _
from grpo_lab.teaching.plots.intervals import finite
from grpo_lab.teaching.plots.style import BACKGROUND, OKABE_ITO


def token_heat(tokens: Sequence[str], values, limit: float | None = None, signs: bool = True) -> View:
    """Write the tokens one after the other, each on the colour of its value and followed by that value.

    Blue is above zero, orange below, the stronger the further away. The sign is written too: it needs no eye for
    colour, and it stays where a web page drops the colours.

    Args:
        tokens: decoded tokens; spaces and line ends are made visible.
        values: one number for each, such as advantages or log-probabilities.
        limit: the absolute value that gets the full colour; None means the largest one here.
        signs: False for what cannot be negative, such as probabilities: no plus signs, and a legend from zero on.
    """
    values = finite("values", values)
    if values.shape != (len(tokens),):
        raise InputError(f"values has shape {values.shape}; expected one number for each of the {len(tokens)} tokens")
    limit = float(limit or np.abs(values).max(initial=0) or 1)
    value_texts = [written(value, "+" if signs else "") for value in values]
    parts = [_token(token, text, value / limit) for token, text, value in zip(tokens, value_texts, values, strict=True)]
    shares = (-1.0, -0.5, 0.0, 0.5, 1.0) if signs else (0.0, 0.5, 1.0)
    legend = " ".join(patch(written(share * limit, "+" if signs else ""), share) for share in shares)
    box = f"background-color:{BACKGROUND};color:#000000;padding:8px 12px;border:1px solid #CCCCCC;line-height:2.1"
    markup = f'<div style="{box}">{"".join(parts)}<br>{_("value:")} {legend}</div>'
    text = " ".join(f"{visible(token)}[{value}]" for token, value in zip(tokens, value_texts, strict=True))
    return View(markup, text, "text/html")


def _token(token: str, written: str, share: float) -> str:
    line_end = "<br>" if token.endswith("\n") else ""
    return f"{patch(visible(token), share)}<sub>{written}</sub> {line_end}"


def patch(text: str, share: float) -> str:
    """HTML of a text on the colour of its share."""
    # <code>, since formulas are never typeset in it: a token may well be a dollar sign
    style = f"background-color:{shade(share)};color:#000000;padding:2px 3px;border-radius:3px"
    return f'<code style="{style}">{html.escape(text)}</code>'


def shade(share: float) -> str:
    """The colour of a share: white at 0, sky blue at 1, orange at -1; black text stays readable on all of them."""
    full = OKABE_ITO["sky" if share > 0 else "orange"]
    strength = min(abs(share), 1.0)
    parts = [round(255 + strength * (int(full[i : i + 2], 16) - 255)) for i in (1, 3, 5)]
    return "#" + "".join(f"{part:02X}" for part in parts)


def visible(token: str) -> str:
    return token.replace(" ", "·").replace("\n", "⏎").replace("\t", "⇥") or "∅"


def written(value: float, sign: str) -> str:
    return f"{value:{sign}.2f}" if round(value, 2) else "0"
