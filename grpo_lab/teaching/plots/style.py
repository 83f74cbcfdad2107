"""The look of every figure, and showing a figure with its caption and alternative text.

The colours are those of Okabe and Ito, which colour-blind readers can distinguish. Lines differ in their dashes, too.
The background is light and opaque, so that a figure is readable in a dark theme. Matplotlib is imported on first use,
so the package works without it.
"""

import base64
import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo_lab.base.display import display, escape_tags, in_ipython, say
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
CENTRED: dict[str, Any] = {"ha": "center", "va": "center"}
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
DPI = 200  # two pixels of the image for each CSS pixel of the page, for sharp figures on high-resolution screens
CHINESE_FONT = Path(__file__).with_name("fonts") / "NotoSansCJKsc-subset.otf"  # the licence is in the same folder
CHINESE_FONT_NAME = "Noto Sans CJK SC Regular"  # name of the font in matplotlib
PNG_COLOURS = 64  # number of colours of an image
# Environment variable: a second language in which `notebooks/build.py` has each figure drawn.
SECOND_LANGUAGE = "GRPO_LAB_FIGURES_IN"
LOOK = Path(__file__).with_name("series.mplstyle")


def use_style() -> None:
    """Set the look of the series for all figures that are made from now on."""
    import matplotlib.pyplot as plt
    from cycler import cycler
    from matplotlib.font_manager import fontManager, get_font_names

    if CHINESE_FONT_NAME not in get_font_names():
        fontManager.addfont(CHINESE_FONT)
        # The font has no bold variant: register it as its own bold variant.
        fontManager.ttflist.append(replace(fontManager.ttflist[-1], weight=700))
    plt.style.use(LOOK)
    # Matplotlib takes each character from the first of these fonts that has it.
    plt.rcParams["font.family"] = ["DejaVu Sans", CHINESE_FONT_NAME]
    plt.rcParams["axes.prop_cycle"] = cycler(color=OKABE_ITO.values()) + cycler(linestyle=DASHES)


def finish(fig, *, caption: str, alt: str) -> None:
    """Show the figure in the notebook with its caption below, store its alternative text, and close it.

    In a shell the caption is printed, and the figure stays open for `plt.show()` or `fig.savefig()`.

    Args:
        fig: The matplotlib figure.
        caption: One sentence that says what to see.
        alt: A description of the figure for readers who cannot see it.
    """
    if in_ipython():
        display(*picture(fig, alt))
    show_caption(caption)


def picture(fig, alt: str) -> tuple[dict[str, str], dict]:
    """Return the MIME bundle and the metadata of a figure as a PNG in the reader's language, and close the figure.

    The metadata contain the alternative text and the width on the page in CSS pixels. While notebooks are built, they
    also contain the labels of the figure and, under the name of the second language, the image with translated labels.
    """
    import matplotlib.pyplot as plt

    if language() != "en":
        translate_labels(fig, language())
    content, alt = {"image/png": png(fig)}, _(alt)
    metadata = {"alt": alt, "width": round(fig.get_figwidth() * DPI / 2)}
    if target := os.environ.get(SECOND_LANGUAGE):
        metadata["labels"] = figure_labels(fig)
        translate_labels(fig, target)
        metadata[target] = png(fig)
    plt.close(fig)  # a notebook shows every figure that is open at the end of a cell
    return content | {"text/plain": alt}, {"image/png": metadata}


def png(fig) -> str:
    """Return the figure as a PNG in base64, with `PNG_COLOURS` colours so that it takes a third of the space."""
    from PIL import Image

    full_png, small_png = io.BytesIO(), io.BytesIO()
    fig.savefig(full_png, format="png", dpi=DPI)
    image = Image.open(full_png).convert("RGB")
    # This method keeps each colour close to its original; others merge thin lines with bands, or two bands.
    few_colours = image.quantize(PNG_COLOURS, Image.Quantize.MAXCOVERAGE, 2, dither=Image.Dither.NONE)
    few_colours.save(small_png, format="png", optimize=True)
    return base64.b64encode(small_png.getvalue()).decode("ascii")


def show_caption(caption: str) -> None:
    caption, head = _(caption), _("Figure.")
    say(f"**{head}** {escape_tags(caption)}", f"{head} {caption}")


def arrow(ax, start: tuple, end: tuple) -> None:
    look = {"arrowstyle": "-|>", "color": GREY, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", end, start, arrowprops=look, zorder=3)


def without_grid(ax, *spines: str) -> None:
    """Remove the grid of the axes and the named spines."""
    ax.grid(visible=False)
    for side in spines:
        ax.spines[side].set_visible(False)
