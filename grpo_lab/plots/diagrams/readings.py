"""What a reward reads of a text: lines of text with marks on them."""

from collections.abc import Sequence

from grpo_lab.plots.style import OKABE_ITO

WIDTH, ROW, GAP = 9.0, 0.27, 2  # inches, inches, characters between columns


def marked_texts(rows: Sequence[tuple[str, str, Sequence[tuple[int, int]], str]]):
    """Draw a line for each text, with a coloured, underlined mark on each of its spans, and words on both sides.

    Args:
        rows: for each line a name (left out where the row above has it too), a text, the spans to mark, each a first
            index and the index after the last one, and what to say at its end. A line end is drawn as ⏎.

    Returns:
        The matplotlib figure.

    Raises:
        ValueError: without rows, or for a span that is not in its text.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    if not rows:
        raise ValueError("rows is empty; expected at least one (name, text, spans, words)")
    for name, text, spans, _ in rows:
        if outside := [span for span in spans if not 0 <= span[0] <= span[1] <= len(text)]:
            raise ValueError(f"{name}: no span {outside[0]} in a text of {len(text)} characters")
    begin = max(len(name) for name, *_ in rows) + GAP
    end = begin + max(len(text) for _, text, *_ in rows) + GAP
    whole = end + max(len(words) for *_, words in rows)
    fig, ax = plt.subplots(figsize=(WIDTH, ROW * len(rows) + 0.2))
    blue, size = OKABE_ITO["blue"], min(10.0, 72 * WIDTH / whole * 1.45)  # a monospaced character is 0.6 of its size
    for row, (name, text, spans, words) in enumerate(rows):
        y, line = -row, {"fontsize": size, "family": "monospace", "va": "center"}
        for first, last in spans:
            box = {"facecolor": OKABE_ITO["sky"], "alpha": 0.55, "linewidth": 0}
            ax.add_patch(Rectangle((begin + first, y - 0.36), last - first, 0.72, **box))
            ax.plot([begin + first, begin + last], [y - 0.36] * 2, color=blue, linestyle="-", linewidth=1.4)
        if row == 0 or rows[row - 1][0] != name:
            ax.text(0, y, name, fontsize=size, fontweight="bold", va="center")
        for place, letter in enumerate(text.replace("\n", "⏎")):
            ax.text(begin + place + 0.5, y, letter, ha="center", **line)
        ax.text(end, y, words, fontsize=size, va="center")
    ax.set(xlim=(0, whole), ylim=(-len(rows) + 0.4, 0.6))
    ax.axis("off")
    return fig
