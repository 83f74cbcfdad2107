"""A moving picture, as a recorded animation below a play button, and as a strip of frames for those who only read."""

import base64
import html
import io
from collections.abc import Callable, Sequence

from grpo_lab.base.display import display, in_ipython
from grpo_lab.base.language import _, language
from grpo_lab.teaching.plots.labels import translate_labels
from grpo_lab.teaching.plots.style import finish

SECONDS, LAST = 0.12, 1.5  # that a frame stays, and that the last one stays
DPI = 80


def animate(draw: Callable, name: str, values: Sequence, frames: Sequence, *, caption: str, alt: str, **look) -> None:
    """Show the strip of `frames` and, below it, a play button that opens the drawings of all `values` one by one.

    Args:
        draw, name, frames, look: as in `strip`.
        values: of all frames of the animation.
        caption, alt: as in `finish`, for the strip.
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
    """A figure of these frames side by side, each titled "name = value".

    Args:
        draw: called as draw(ax, value); draws one frame and names its x axis. The limits of both axes are its business.
        name: of what changes from frame to frame, with its unit.
        frames: the values that are drawn, at most 4.
        ylabel: of the leftmost frame.
        height, width: of the figure, in inches.
    """
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, len(frames), figsize=(width, height), sharey=True, squeeze=False)
    for ax, value in zip(axes[0], frames, strict=True):
        draw(ax, value)
        ax.set_title(f"{name} = {value:.4g}", fontsize=10)
    axes[0, 0].set_ylabel(ylabel or "")
    return fig


def _gif(draw: Callable, name: str, values: Sequence, ylabel: str | None) -> str:
    import matplotlib.pyplot as plt
    from PIL import Image

    pictures, whole = [], io.BytesIO()
    for value in values:
        fig, raw = strip(draw, name, [value], ylabel, 3.6, width=4.8), io.BytesIO()
        if language() != "en":
            translate_labels(fig, language())
        fig.savefig(raw, format="png", dpi=DPI)
        plt.close(fig)
        pictures.append(Image.open(raw).convert("RGB"))
    # One palette for all, so that a frame holds only what differs from the one before.
    sheet = Image.new("RGB", (pictures[0].width, sum(picture.height for picture in pictures)))
    for position, picture in enumerate(pictures):
        sheet.paste(picture, (0, position * picture.height))
    palette = sheet.quantize(48, dither=Image.Dither.NONE)
    pictures = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    times = [int(1000 * SECONDS)] * (len(pictures) - 1) + [int(1000 * LAST)]
    pictures[0].save(whole, format="gif", save_all=True, append_images=pictures[1:], duration=times, loop=0)
    return base64.b64encode(whole.getvalue()).decode("ascii")
