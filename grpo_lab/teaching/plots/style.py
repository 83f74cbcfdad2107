"""The look of every figure, and how one is shown: as a picture with its words.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart, and a line differs from its neighbours in
its dashes as well. The background is light and opaque, so that a figure stays readable in a dark theme. Matplotlib is
imported on first use: the package works without it.
"""

import base64
import io
import os
from dataclasses import replace
from pathlib import Path

from grpo_lab.base.display import display, in_ipython, prose, say
from grpo_lab.base.language import _, language
from grpo_lab.teaching.plots.labels import figure_labels, translate_labels

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
DPI = 200  # two pixels of the picture for one of the page: sharp on a screen of today and when one zooms in
CHINESE_FONT = Path(__file__).with_name("fonts") / "NotoSansCJKsc-subset.otf"  # its licence lies beside it
CHINESE = "Noto Sans CJK SC Regular"  # what matplotlib calls it
COLOURS = 64
IN = "GRPO_LAB_FIGURES_IN"  # a language in which `notebooks/build.py` wants each figure drawn, too
LOOK = Path(__file__).with_name("series.mplstyle")


def use_style() -> None:
    """Give every figure from here on the look of the series."""
    import matplotlib.pyplot as plt
    from cycler import cycler
    from matplotlib.font_manager import fontManager, get_font_names

    if CHINESE not in get_font_names():
        fontManager.addfont(CHINESE_FONT)
        fontManager.ttflist.append(replace(fontManager.ttflist[-1], weight=700))  # there is no bold one: take it, too
    fonts = {"font.family": ["DejaVu Sans", CHINESE]}  # for each sign the first that has it
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
    """(MIME bundle, metadata) of the figure as a PNG in the reader's language; closes it.

    The metadata say how wide a page shows it, in CSS pixels. While the notebooks are built they also hold the labels,
    and under the name of a language the picture with its labels in that language.
    """
    import matplotlib.pyplot as plt

    if language() != "en":
        translate_labels(fig, language())
    content, alt = {"image/png": png(fig)}, _(alt)
    metadata = {"alt": alt, "width": round(fig.get_figwidth() * DPI / 2)}
    if target := os.environ.get(IN):
        metadata["labels"] = figure_labels(fig)
        translate_labels(fig, target)
        metadata[target] = png(fig)
    plt.close(fig)  # the notebook would show an open figure a second time
    return content | {"text/plain": alt}, {"image/png": metadata}


def png(fig) -> str:
    """The figure as a PNG of few colours, which takes a third of the space; in base64."""
    from PIL import Image

    raw, small = io.BytesIO(), io.BytesIO()
    fig.savefig(raw, format="png", dpi=DPI)
    # With this method no colour ends far from its own: others merge thin lines with bands, or one band with another.
    whole = Image.open(raw).convert("RGB")
    few_colours = whole.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, 2, dither=Image.Dither.NONE)
    few_colours.save(small, format="png", optimize=True)
    return base64.b64encode(small.getvalue()).decode("ascii")


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
