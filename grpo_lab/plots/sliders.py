"""One question, one slider: a frame for each value of a parameter, and a strip of frames for those who only read."""

from collections.abc import Callable, Sequence

from grpo_lab.display import display, in_ipython
from grpo_lab.plots.style import finish, picture

WIDTH = 7.2  # inches, of the whole strip


def explore(
    draw: Callable,
    name: str,
    values: Sequence,
    frames: Sequence | None = None,
    *,
    caption: str,
    alt: str,
    ylabel: str | None = None,
) -> None:
    """Show a strip of frames side by side and, in a live notebook, a slider below it that draws one frame at a time.

    Args:
        draw: called as draw(ax, value); draws one frame and names its x axis.
        name: of the parameter, with its unit; each frame is titled "name = value".
        values: all values that the slider offers.
        frames: those of them that stand in the strip, at most 4; None for all.
        caption, alt: as in `finish`, for the strip.
        ylabel: of the leftmost frame.
    """
    values, frames = list(values), list(values if frames is None else frames)
    finish(strip(draw, name, frames, ylabel, 2.7), caption=caption, alt=alt)
    if in_ipython():
        _slider(draw, name, values, frames[len(frames) // 2], ylabel, alt)


def strip(draw: Callable, name: str, frames: list, ylabel: str | None, height: float, width: float = WIDTH):
    """A figure of these frames side by side."""
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, len(frames), figsize=(width, height), sharey=True, squeeze=False)
    for ax, value in zip(axes[0], frames, strict=True):
        draw(ax, value)
        ax.set_title(_titled(name, value), fontsize=10)
    if ylabel:
        axes[0, 0].set_ylabel(ylabel)
    return fig


def _slider(draw: Callable, name: str, values: list, start, ylabel: str | None, alt: str) -> None:
    """The slider and its frame. A saved notebook keeps neither: the strip above says the same."""
    import ipywidgets

    options, look = [(_written(value), value) for value in values], {"description_width": "initial"}
    handle = ipywidgets.SelectionSlider(options=options, value=start, description=name, style=look)
    handle.continuous_update = False

    def show(value) -> None:
        bundle, metadata = picture(strip(draw, name, [value], ylabel, 3.2), f"{alt} ({_titled(name, value)})")
        display(bundle, metadata)

    frame = ipywidgets.interactive_output(show, {"value": handle})
    from IPython.display import display as show_widget

    show_widget(ipywidgets.VBox([handle, frame], layout=ipywidgets.Layout(max_width="760px")))


def _titled(name: str, value) -> str:
    return f"{name} = {_written(value)}"


def _written(value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
