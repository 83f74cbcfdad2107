"""Animations: a recorded animation behind a play button, and a strip of frames for printed and static pages."""

import base64
import html
import io
from collections.abc import Callable, Sequence

from grpo_lab.base.display import display, in_ipython
from grpo_lab.base.language import _, language
from grpo_lab.teaching.plots.labels import translate_labels
from grpo_lab.teaching.plots.style import finish

SECONDS_PER_FRAME = 0.12
SECONDS_OF_LAST_FRAME = 1.5
DPI = 80


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
        fig.savefig(png_file, format="png", dpi=DPI)
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
