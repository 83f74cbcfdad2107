"""A batch of answers as the objective sees it: token by token, the advantage as colour, the padding left out."""

from collections.abc import Sequence

from grpo_lab.plots.intervals import finite
from grpo_lab.plots.tokens import shade, visible

PADDING, LINE = "#E4E4E4", "#9A9A9A"
LONGEST = 7  # characters that fit into a box


def batch_figure(answers: Sequence[Sequence[str]], advantages: Sequence[float], width: int | None = None):
    """Draw one row of boxes for each answer: its tokens in the colour of its advantage, padding in grey after them.

    Args:
        answers: the tokens of each answer, up to and with the end token.
        advantages: one number for each answer; it is written in front of the row.
        width: boxes in a row, the padding among them; None for the longest answer.

    Returns:
        A matplotlib figure.

    Raises:
        ValueError: if there are not as many advantages as answers, or an answer is longer than the width.
    """
    import matplotlib.pyplot as plt

    values = finite("advantages", advantages)
    if len(values) != len(answers) or not answers:
        raise ValueError(f"advantages has {len(values)} numbers; expected one for each of the {len(answers)} answers")
    longest = max(len(tokens) for tokens in answers)
    width = longest if width is None else width
    if longest > width:
        raise ValueError(f"width is {width}; expected at least {longest}, the longest answer")
    limit = abs(values).max() or 1.0
    fig, ax = plt.subplots(figsize=(7.2, 0.4 + 0.42 * len(answers)))
    for row, (tokens, advantage) in enumerate(zip(answers, values, strict=True)):
        ax.text(-0.4, row, f"{advantage:+.2f}" if advantage else "0", ha="right", va="center", fontsize=8)
        for place in range(width):
            inside = place < len(tokens)
            colour = shade(advantage / limit) if inside else PADDING
            ax.add_patch(
                plt.Rectangle((place, row - 0.42), 0.94, 0.84, facecolor=colour, edgecolor=LINE, linewidth=0.5)
            )
            if inside:
                word = short(tokens[place])
                turn = 90 if len(word) > 2 else 0  # a word fits into a narrow box upright
                ax.text(place + 0.48, row, word, ha="center", va="center", fontsize=7 - 1.2 * (turn > 0), rotation=turn)
    ax.text(-0.4, -0.85, "advantage", ha="right", va="center", fontsize=8, color="#444444")
    ax.text(0, -0.85, "tokens of the answer, then padding (grey)", va="center", fontsize=8, color="#444444")
    ax.set(xlim=(-3.4, width + 0.1), ylim=(len(answers) - 0.4, -1.3))
    ax.axis("off")
    return fig


def short(token: str) -> str:
    """A token as it fits into a box: without the brackets of a tag, white space made visible."""
    text = visible(token).strip()
    text = text[1:-1] if len(text) > 2 and text[0] == "<" and text[-1] == ">" else text
    text = "end" if text.startswith("|") else text
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
