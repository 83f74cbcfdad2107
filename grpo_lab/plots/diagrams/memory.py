"""Where the memory of a step goes: bars of what is alive at the same time, piece on piece, beside a card."""

from collections.abc import Mapping

from grpo_lab.plots.style import OKABE_ITO

# name: colour, hatch. Pieces of other names take the last line.
LOOKS = {
    "weights": ("blue", ""),
    "Adam's moments": ("sky", "//"),
    "gradients": ("green", ""),
    "reference": ("purple", "xx"),
    "activations": ("vermillion", ""),
    "head": ("orange", ""),
    "half copies": ("black", "..."),
    "KV cache": ("vermillion", "\\\\"),
}
OTHER = ("black", "")
FAINT = 0.55  # opacity: text on a piece stays readable
ROOM = 0.0112  # of the axis, for one letter of a label


def memory_bars(rows: Mapping[str, Mapping[str, int | float]], card: int | float | None = None):
    """A figure with one bar for each row, made of the pieces that are alive together; the total stands at its end.

    A piece that is wide enough carries its name, unless the line of the card runs there; what is named on no bar is
    named below them.

    Args:
        rows: name of a bar -> piece -> size in GiB. The first row stands on top.
        card: the size of a card, drawn as a line; None draws none.
    """
    import matplotlib.pyplot as plt

    totals = {name: sum(pieces.values()) for name, pieces in rows.items()}
    end = 1.13 * max([*totals.values(), card or 0.0])
    used = [piece for piece in LOOKS if any(pieces.get(piece) for pieces in rows.values())]
    used = list(dict.fromkeys([*used, *(p for pieces in rows.values() for p, size in pieces.items() if size)]))
    fig, ax = plt.subplots(figsize=(7.2, 1.3 + 0.5 * len(rows)))
    patches, on_it = {}, set()
    for place, (name, pieces) in enumerate(rows.items()):
        left = 0.0
        for piece in used:
            if size := pieces.get(piece, 0.0):
                patches[piece] = _piece(ax, place, left, size, piece)
                if _named(ax, place, left, size, piece, end, card):
                    on_it.add(piece)
                left += size
        ax.text(left + 0.01 * end, place, f"{totals[name]:.1f}", va="center", fontsize=9, weight="bold")
    if card is not None:
        ax.axvline(card, color=OKABE_ITO["black"], linestyle=":")
        ax.annotate(f"a card of {card:g} GiB", (card, 1), xycoords=("data", "axes fraction"), fontsize=8.5,
                    xytext=(4, -2), textcoords="offset points", va="bottom")  # fmt: skip
    ax.set(yticks=range(len(rows)), yticklabels=rows, xlim=(0, end), xlabel="GiB alive at the same time")
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    if below := {piece: patch for piece, patch in patches.items() if piece not in on_it}:
        fig.legend(below.values(), below, loc="outside lower center", ncols=5, fontsize=8.5, handlelength=1.5)
    return fig


def _piece(ax, place: int, left: float, size: float, piece: str):
    colour, hatch = LOOKS.get(piece, OTHER)
    fill = (OKABE_ITO[colour], 0.25 if colour == "black" else FAINT)
    edge = {"edgecolor": "white", "linewidth": 0.8}
    (patch,) = ax.barh(place, size, left=left, height=0.62, color=[fill], hatch=hatch, **edge)
    return patch


def _named(ax, place: int, left: float, size: float, piece: str, end: float, card: int | float | None) -> bool:
    """Write the name onto the piece, in one or two lines, if there is room for it and the line of the card is not."""
    centre = left + size / 2
    for label in (piece, piece.replace(" ", "\n", 1)):
        width = max(map(len, label.split("\n"))) * ROOM * end
        if width <= size and (card is None or abs(centre - card) > width / 2):
            ax.text(centre, place, label, ha="center", va="center", fontsize=8)
            return True
    return False
