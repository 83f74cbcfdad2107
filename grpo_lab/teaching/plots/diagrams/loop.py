"""A diagram of the loop of GRPO: seven stages in a row, those of the lesson marked."""

from collections.abc import Iterable
from typing import Any

from grpo_lab.base.checks import check_choice
from grpo_lab.teaching.plots.style import CENTRED, GREY, OKABE_ITO, arrow, finish

STAGES = ("prompts", "group", "reward", "advantage", "log-probs", "objective", "step")
PALE = "#F0F0F0"
BOX_DISTANCE, BOX_WIDTH, BOX_HEIGHT = 1.6, 1.36, 0.84  # the distance is from centre to centre


def loop_diagram(here: str | Iterable[str] = (), met: Iterable[str] = STAGES, *, caption: str | None = None) -> None:
    """Show the loop of GRPO with the stages of a lesson marked.

    Args:
        here: One or several of the `STAGES` that the lesson is about; they are coloured.
        met: The stages of earlier lessons. All other stages are pale and dashed.
        caption: The caption of the figure; None for the usual sentence, "You are here: ...".
    """
    here, met = ((stages,) if isinstance(stages, str) else tuple(stages) for stages in (here, met))
    for stage in here + met:
        check_choice("stage", stage, STAGES)
    alt = f"The loop of GRPO, a row of seven boxes: {', '.join(STAGES)}; an arrow leads from the last back to the first"
    usual = "The loop of GRPO. The policy that a step leaves behind writes the next answers."
    if here:
        alt += f"; coloured: {', '.join(here)}"
        usual = f"You are here: {', '.join(here)}."
        if later := [stage for stage in STAGES if stage not in here + met]:
            alt += f"; still to come, dashed: {', '.join(later)}"
            usual += " The dashed boxes come later."
    finish(_row(here, met), caption=caption or usual, alt=alt)


def _row(current: tuple[str, ...], met: tuple[str, ...]):
    """Make the figure: a row of boxes, and an arrow from the last one back to the first."""
    import matplotlib.pyplot as plt

    last, floor = BOX_DISTANCE * (len(STAGES) - 1), -0.75
    # The style sets this layout, too, but may not be in use yet.
    fig, ax = plt.subplots(figsize=(7.2, 0.95), layout="constrained")
    ax.set(xlim=(-0.85, last + 0.85), ylim=(-0.95, 0.75))
    ax.axis("off")
    for index, stage in enumerate(STAGES):
        _box(ax, BOX_DISTANCE * index, stage, stage in current, stage in met)
        if index:
            arrow(ax, (BOX_DISTANCE * (index - 1) + BOX_WIDTH / 2, 0.0), (BOX_DISTANCE * index - BOX_WIDTH / 2, 0.0))
    # The arrow from the step back to the prompts: down, to the left below the boxes, and up.
    ax.plot([last, last, 0], [-BOX_HEIGHT / 2, floor, floor], color=GREY, linewidth=1.2, linestyle="-")
    arrow(ax, (0, floor), (0, -BOX_HEIGHT / 2))
    return fig


def _box(ax, x: float, stage: str, is_current: bool, is_met: bool) -> None:
    from matplotlib.patches import FancyBboxPatch

    look: dict[str, Any] = {"facecolor": PALE, "edgecolor": GREY, "linewidth": 0.8}
    if is_current:
        look = {"facecolor": "#D9ECF7", "edgecolor": OKABE_ITO["blue"], "linewidth": 1.6}
    elif not is_met:
        look |= {"facecolor": "none", "linestyle": (0, (3, 2))}
    rounded = "round,pad=0,rounding_size=0.12"
    ax.add_patch(FancyBboxPatch((x - BOX_WIDTH / 2, -BOX_HEIGHT / 2), BOX_WIDTH, BOX_HEIGHT, boxstyle=rounded, **look))
    text_look = {"weight": "bold" if is_current else "normal", "color": "black" if is_current or is_met else GREY}
    ax.text(x, 0, stage, **CENTRED, fontsize=9, **text_look)
