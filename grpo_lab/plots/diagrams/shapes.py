"""What several diagrams are made of."""

GREY = "#9A9A9A"


def box(ax, x, y, width, height, **style) -> None:
    from matplotlib.patches import Rectangle

    ax.add_patch(Rectangle((x, y), width, height, **style))


def arrow(ax, start: tuple, end: tuple, colour: str = GREY, **style) -> None:
    style = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0} | style
    ax.annotate("", end, start, arrowprops=style, zorder=3)
