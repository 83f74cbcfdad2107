"""The loop of GRPO as one picture: seven stages in a row, and where in it a lesson is."""

from collections.abc import Iterable

from grpo_lab.base.checks import check_choice
from grpo_lab.teaching.plots.style import CENTRED, GREY, OKABE_ITO, arrow, finish

STAGES = ("prompts", "group", "reward", "advantage", "log-probs", "objective", "step")
PALE = "#F0F0F0"
APART, WIDE, TALL = 1.6, 1.36, 0.84  # the distance of the boxes, their width and their height


def loop_diagram(here: str | Iterable[str] = (), met: Iterable[str] = STAGES, *, caption: str | None = None) -> None:
    """Draw the loop, and "you are here".

    Args:
        here: one or several of the stages, which are coloured.
        met: the stages that were met before; the others, which are still to come, are dashed and pale.
        caption: in place of the usual sentence.
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
    import matplotlib.pyplot as plt

    last, floor = APART * (len(STAGES) - 1), -0.75
    fig, ax = plt.subplots(figsize=(7.2, 0.95), layout="constrained")  # as wide before the style is set
    ax.set(xlim=(-0.85, last + 0.85), ylim=(-0.95, 0.75))
    ax.axis("off")
    for index, stage in enumerate(STAGES):
        _box(ax, APART * index, stage, stage in current, stage in met)
        if index:
            arrow(ax, (APART * (index - 1) + WIDE / 2, 0.0), (APART * index - WIDE / 2, 0.0))
    # From the step back to the next prompts: down, along the floor, up.
    ax.plot([last, last, 0], [-TALL / 2, floor, floor], color=GREY, linewidth=1.2, linestyle="-")
    arrow(ax, (0, floor), (0, -TALL / 2))
    return fig


def _box(ax, x: float, stage: str, current: bool, met: bool) -> None:
    from matplotlib.patches import FancyBboxPatch

    look = {"facecolor": PALE, "edgecolor": GREY, "linewidth": 0.8}
    if current:
        look = {"facecolor": "#D9ECF7", "edgecolor": OKABE_ITO["blue"], "linewidth": 1.6}
    elif not met:
        look |= {"facecolor": "none", "linestyle": (0, (3, 2))}
    rounded = "round,pad=0,rounding_size=0.12"
    ax.add_patch(FancyBboxPatch((x - WIDE / 2, -TALL / 2), WIDE, TALL, boxstyle=rounded, **look))
    words = {"weight": "bold" if current else "normal", "color": "black" if current or met else GREY}
    ax.text(x, 0, stage, **CENTRED, fontsize=9, **words)
