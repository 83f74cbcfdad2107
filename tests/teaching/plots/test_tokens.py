"""Tokens coloured by value are escaped, and tell the sign without colour."""

import html
import re

import pytest
import torch

from grpo_lab.teaching import plots
from grpo_lab.toys.worlds.comparison import token_weights


def words(markup: str) -> list[str]:
    """Return the texts of an HTML page without its tags."""
    return [html.unescape(text) for text in re.findall("(?:^|>)([^<]+)", markup) if text.strip()]


def test_token_heat_escapes_tokens_and_makes_white_space_visible():
    tokens = ["<script>alert(1)</script>", " a&b", "\n", "", "$x$", "答案", '"']
    page = plots.token_heat(tokens, torch.arange(-3.0, 4.0)).rich
    assert set(re.findall(r"<(\w+)", page)) == {"div", "code", "sub", "br"}
    assert {"<script>alert(1)</script>", "·a&b", "⏎", "∅", "$x$", "答案", '"'} <= set(words(page))


def test_token_heat_tells_the_sign_without_colour_where_there_is_one():
    drawn = plots.token_heat(["a", "b", "c"], [0.5, -0.25, 0.0])
    assert words(drawn.rich)[:6] == ["a", "+0.50", "b", "-0.25", "c", "0"]
    assert drawn._repr_mimebundle_()["text/plain"] == repr(drawn) == "a[+0.50] b[-0.25] c[0]"
    drawn = plots.token_heat(["a", "b"], [0.25, 1.0], limit=1.0, signs=False)
    assert words(drawn.rich) == ["a", "0.25", "b", "1.00", "value: ", "0", "0.50", "1.00"]
    for values in ([1.0], [[1.0, 2.0]], [1.0, float("nan")]):
        with pytest.raises(ValueError, match="values h"):
            plots.token_heat(["a", "b"], values)


def test_the_weight_of_each_row_is_written_and_padding_is_crossed_out():
    mask = torch.arange(4) < torch.tensor([[2], [4]])
    weights = {name: token_weights(mask, name, 4) for name in ("grpo", "dr_grpo")}
    fig = plots.ragged_batch(weights, mask, ["short", "long"])
    for ax, (name, weight) in zip(fig.axes, weights.items(), strict=True):
        assert ax.get_title() == name
        assert [text.get_text() for text in ax.texts] == [f"{value:.3f}" for value in weight[:, 0].tolist()]
        assert len(ax.patches) == 6
        assert len(ax.lines[0].get_xdata()) == 2
    assert [label.get_text() for label in fig.axes[0].get_yticklabels()] == ["short", "long"]
