"""The look of every figure, and how one is shown: as a picture with its words.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart, and a line differs from its neighbours in
its dashes as well. The background is light and opaque, so that a figure stays readable in a dark theme. Matplotlib is
imported on first use: the package works without it.
"""

import base64
import io
from pathlib import Path

from grpo_lab.base.display import display, in_ipython, prose, say
from grpo_lab.base.language import _

OKABE_ITO = {
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "green": "#009E73",
    "purple": "#CC79A7",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "black": "#000000",
}
BACKGROUND = "#FCFCFC"
GREY = "#9A9A9A"
CENTRED = {"ha": "center", "va": "center"}
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
DPI = 110
# For Chinese in plots of yours. Matplotlib knows a collection by its first font (JP, HK), which has all signs.
CHINESE_FONTS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Microsoft YaHei", "SimHei", "PingFang SC", "PingFang HK")
LOOK = Path(__file__).with_name("series.mplstyle")


def use_style() -> None:
    """Give every figure from here on the look of the series."""
    import matplotlib.pyplot as plt
    from cycler import cycler
    from matplotlib.font_manager import get_font_names

    installed_fonts = set(get_font_names())
    fonts = {"font.sans-serif": ["DejaVu Sans", *(name for name in CHINESE_FONTS if name in installed_fonts)]}
    plt.style.use(LOOK)
    plt.rcParams.update(fonts | {"axes.prop_cycle": cycler(color=OKABE_ITO.values()) + cycler(linestyle=DASHES)})


def finish(fig, *, caption: str, alt: str) -> None:
    """Show the figure in the notebook, its alternative text stored with it and its caption below, and close it.

    In a shell the caption is printed and the figure stays open, for `plt.show()` or `fig.savefig()`.

    Args:
        fig: matplotlib figure.
        caption: one sentence that says what to see.
        alt: what the figure shows, for those who cannot see it.
    """
    if in_ipython():
        display(*picture(fig, alt))
    show_caption(caption)


def picture(fig, alt: str) -> tuple[dict[str, str], dict]:
    """(MIME bundle, metadata) of the figure as a PNG of few colours, which takes a third of the space; closes it."""
    import matplotlib.pyplot as plt
    from PIL import Image

    raw, small = io.BytesIO(), io.BytesIO()
    fig.savefig(raw, format="png", dpi=DPI)
    plt.close(fig)  # the notebook would show an open figure a second time
    # With this method no colour ends far from its own: others merge thin lines with bands, or one band with another.
    few_colours = Image.open(raw).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, 2, dither=Image.Dither.NONE)
    few_colours.save(small, format="png", optimize=True)
    alt = _(alt)
    content = {"image/png": base64.b64encode(small.getvalue()).decode("ascii"), "text/plain": alt}
    return content, {"image/png": {"alt": alt}}


def show_caption(caption: str) -> None:
    caption, head = _(caption), _("Figure.")
    say(f"**{head}** {prose(caption)}", f"{head} {caption}")


def arrow(ax, start: tuple, end: tuple) -> None:
    look = {"arrowstyle": "-|>", "color": GREY, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", end, start, arrowprops=look, zorder=3)


def without_grid(ax, *spines: str) -> None:
    """Axes without their grid and without these spines, which would say nothing here."""
    ax.grid(visible=False)
    for side in spines:
        ax.spines[side].set_visible(False)
