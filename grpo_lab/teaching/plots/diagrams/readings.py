"""Pictures of what instruments read: numbers as a table in colour, and the logs of several runs side by side."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor


def coloured_table(values: Float[Tensor, "R C"], rows: Sequence[str], columns: Sequence[str]):
    """A figure of R times C numbers, at least 0; what is at most 0.01 is written as 0."""
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(6, 0.7 * len(rows)))
    ax.imshow(values.clamp(max=2), cmap="Oranges", vmin=0, vmax=3, aspect="auto")
    for y, row in enumerate(values.tolist()):
        for x, value in enumerate(row):
            ax.text(x, y, f"{value:.1f}" if value > 0.01 else "0", ha="center", va="center", fontsize=12)
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(rows)), rows)
    ax.grid(visible=False)
    return fig


def logs_side_by_side(logs: dict[str, dict[str, list[float]]], panels: dict[str, str], log_scale: str):
    """A figure with a column for each log and a row for each metric of `panels`, metric: label."""
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(len(panels), len(logs), figsize=(7.2, 1.25 * len(panels)), sharex=True, sharey="row")
    for (name, log), column in zip(logs.items(), axes.T, strict=True):
        column[0].set_title(name)
        for (metric, label), ax in zip(panels.items(), column, strict=True):
            ax.plot(range(1, len(log[metric]) + 1), log[metric], color="black")
            ax.set_yscale("log" if metric == log_scale else "linear")
            if name == next(iter(logs)):
                ax.set_ylabel(label)
    fig.supxlabel("step", fontsize=10)
    return fig
