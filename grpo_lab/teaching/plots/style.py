"""The look of every figure, and showing a figure or an animation with its caption and alternative text.

The colours are those of Okabe and Ito, which colour-blind readers can distinguish. Lines differ in their dashes, too.
The background is light and opaque, so that a figure is readable in a dark theme. Matplotlib is imported on first use,
so the package works without it.

An animation is recorded and stands behind a play button; printed and static pages have a strip of its frames. The
labels of a figure are translated when it is drawn, from po/LANGUAGE/figures.po, with {0}, {1}, ... in place of their
numbers. A label that is not in the file, such as the name of a loss, is not translated.
"""

import base64
import html
import io
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo_lab.base.display import display, escape_tags, in_ipython, say
from grpo_lab.base.language import FIGURES, _, display_catalogue, language
from grpo_lab.teaching.messages import WORD, translate_message

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
SECONDS_PER_FRAME = 0.12
SECONDS_OF_LAST_FRAME = 1.5
ANIMATION_DPI = 80
NO_WORDS = re.compile(r"\$[^$]*\$|<answer>.*|<think>.*")  # formulas, and completions of a model


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


def animate(draw: Callable, name: str, values: Sequence, frames: Sequence, *, caption: str, alt: str, **look) -> None:
    """Show a strip of some frames and, below it in a notebook, a play button that opens the whole animation.

    Args:
        draw: Draws one frame; see `strip`.
        name: The name and unit of the value that changes; see `strip`.
        values: The value of each frame of the animation.
        frames: The values whose frames are in the strip, at most 4.
        caption: The sentence below the strip that says what to see.
        alt: A description of the strip for readers who cannot see it.
        look: Further arguments of `strip`: `ylabel`, `height`, `width`.
    """
    finish(strip(draw, name, frames, **look), caption=caption, alt=alt)
    if in_ipython():
        source = f"data:image/gif;base64,{_gif(draw, name, values, look.get('ylabel'))}"
        picture = f'<img alt="{html.escape(_(alt))}" src="{source}">'
        fold = f"<details><summary>{_('▶ Play')}</summary>{picture}</details>"
        display({"text/html": fold, "text/plain": "an animation"})


def strip(
    draw: Callable, name: str, frames: Sequence, ylabel: str | None = None, height: float = 2.7, width: float = 7.2
):
    """Make a figure of some frames side by side, each with the title "name = value".

    Args:
        draw: A function that is called as draw(ax, value). It draws one frame, and sets the label of the x axis and the
            limits of both axes.
        name: The name of the value that changes from frame to frame, with its unit.
        frames: The values that are drawn, at most 4.
        ylabel: The label of the y axis, shown on the leftmost frame.
        height: The height of the figure in inches.
        width: The width of the figure in inches.
    """
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, len(frames), figsize=(width, height), sharey=True, squeeze=False)
    for ax, value in zip(axes[0], frames, strict=True):
        draw(ax, value)
        ax.set_title(f"{name} = {value:.4g}", fontsize=10)
    axes[0, 0].set_ylabel(ylabel or "")
    return fig


def _gif(draw: Callable, name: str, values: Sequence, ylabel: str | None) -> str:
    """Return the animation as a GIF in base64."""
    import matplotlib.pyplot as plt
    from PIL import Image

    pictures: list[Image.Image] = []
    for value in values:
        fig, png_file = strip(draw, name, [value], ylabel, 3.6, width=4.8), io.BytesIO()
        if language() != "en":
            translate_labels(fig, language())
        fig.savefig(png_file, format="png", dpi=ANIMATION_DPI)
        plt.close(fig)
        pictures.append(Image.open(png_file).convert("RGB"))
    # With one palette for all frames, a frame stores only the pixels that differ from the frame before.
    all_pictures = Image.new("RGB", (pictures[0].width, sum(picture.height for picture in pictures)))
    for position, picture in enumerate(pictures):
        all_pictures.paste(picture, (0, position * picture.height))
    palette = all_pictures.quantize(48, dither=Image.Dither.NONE)
    pictures = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    milliseconds = [int(1000 * SECONDS_PER_FRAME)] * (len(pictures) - 1) + [int(1000 * SECONDS_OF_LAST_FRAME)]
    gif_file = io.BytesIO()
    pictures[0].save(gif_file, format="gif", save_all=True, append_images=pictures[1:], duration=milliseconds, loop=0)
    return base64.b64encode(gif_file.getvalue()).decode("ascii")


def label_translations(target_language: str) -> dict[str, str]:
    """Return {message of an English label: its translation}; empty if Babel or the file is missing."""
    return display_catalogue(FIGURES, target_language)


def translate_label(text: str, target_language: str) -> str:
    """Return a label in another language; a label that is not in the catalogue is returned unchanged."""
    return translate_message(text, label_translations(target_language))


def figure_labels(fig) -> list[str]:
    """Return the distinct texts of a drawn figure that contain a word."""
    from matplotlib.text import Text

    texts = [text.get_text() for text in fig.findobj(Text) if text.get_visible()]
    return list(dict.fromkeys(text for text in texts if WORD.search(NO_WORDS.sub("", text))))


def translate_labels(fig, target_language: str) -> None:
    """Translate all texts of a figure in place: titles, axes, ticks, legends and other texts."""
    from matplotlib.text import Text

    for axis in (axis for axes in fig.axes for axis in (axes.xaxis, axes.yaxis)):
        ticks = [label.get_text() for label in axis.get_majorticklabels()]
        translated_ticks = [translate_label(text, target_language) for text in ticks]
        if translated_ticks != ticks:  # set on the axis, which writes its tick labels again at each drawing
            axis.set_ticks(axis.get_majorticklocs(), translated_ticks)
    for text in fig.findobj(Text):
        text.set_text(translate_label(text.get_text(), target_language))
