"""What several diagrams are made of."""

GREY = "#9A9A9A"
CENTRED = {"ha": "center", "va": "center"}


def box(ax, x, y, width, height, **style) -> None:
    from matplotlib.patches import Rectangle

    ax.add_patch(Rectangle((x, y), width, height, **style))


def arrow(ax, start: tuple, end: tuple, colour: str = GREY, **style) -> None:
    style = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0} | style
    ax.annotate("", end, start, arrowprops=style, zorder=3)


def without_grid(ax, *spines: str) -> None:
    """Axes without their grid and without these spines, which would say nothing here."""
    ax.grid(visible=False)
    for side in spines:
        ax.spines[side].set_visible(False)
