"""The loop of GRPO as one picture: seven stages, and which policy serves each of them."""

import textwrap
from collections.abc import Iterable

from grpo_lab.commands.checks import check_choice
from grpo_lab.teaching.plots.style import CENTRED, GREY, OKABE_ITO, arrow, finish

# name: what is done there, in the words of the series
STAGES = {
    "prompts": "P questions",
    "group": "G answers to each",
    "reward": "right or wrong?",
    "advantage": "better than its group?",
    "log-probs": "how likely was each token?",
    "objective": "what to push, how far?",
    "step": "gradient, optimiser",
}
PALE = "#F0F0F0"
NARROW = 1.36  # width of a box, where the stages stand 1.6 apart


def loop_diagram(
    here: str | Iterable[str] = (), met: Iterable[str] = tuple(STAGES), *, caption: str | None = None
) -> None:
    """Draw the loop: large with what each stage does and which policies serve it, or small with "you are here".

    Args:
        here: one or several of the stages, which are coloured; none of them means the large picture.
        met: the stages that were met before; the others, which are still to come, are dashed and pale.
        caption: in place of the usual sentence.

    Raises:
        ValueError: for a stage that there is not.
    """
    here, met = ((stages,) if isinstance(stages, str) else tuple(stages) for stages in (here, met))
    for stage in here:
        check_choice("here", stage, STAGES)
    for stage in met:
        check_choice("met", stage, STAGES)
    fig = _small(here, met) if here else _large()
    alt = f"The loop of GRPO, a row of seven boxes: {', '.join(STAGES)}; an arrow leads from the last back to the first"
    usual = "The loop of GRPO. The policy that a step leaves behind writes the next answers."
    if here:
        alt += f"; coloured: {', '.join(here)}"
        usual = f"You are here: {', '.join(here)}."
        if later := [stage for stage in STAGES if stage not in here + met]:
            alt += f"; still to come, dashed: {', '.join(later)}"
            usual += " The dashed boxes come later."
    finish(fig, caption=caption or usual, alt=alt)


def _small(here: tuple[str, ...], met: tuple[str, ...]):
    fig, ax = _canvas(height=0.95, top=0.75, bottom=-0.95)
    _row(ax, here, tall=0.42, met=met)
    _back(ax, floor=-0.75, text=None, half=0.42)
    return fig


def _large():
    fig, ax = _canvas(height=3.1, top=2.1, bottom=-2.3)
    _row(ax, tuple(STAGES), tall=0.46)
    for index, said in enumerate(STAGES.values()):
        ax.text(1.6 * index, -0.66, textwrap.fill(said, 12), ha="center", va="top", fontsize=8, color="#333333")
    # Three policies above, each over the stages that ask it.
    _policy(ax, (1,), r"old policy $\pi^{\mathrm{old}}$", "wrote the answers", OKABE_ITO["vermillion"])
    _policy(ax, (4, 6), r"policy $\pi_\theta$", "moves with each step", OKABE_ITO["blue"], centre=5.6)
    _policy(ax, (4,), r"reference $\pi^{\mathrm{ref}}$", "stays where it was", OKABE_ITO["green"], centre=3.4)
    text = "the next prompts; the policy as it is now writes the answers, and so becomes the old one"
    _back(ax, floor=-1.75, text=text, half=1.25)
    return fig


def _canvas(height: float, top: float, bottom: float):
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(7.2, height), layout="constrained")  # as wide before the style is set
    ax.set(xlim=(-0.85, 1.6 * (len(STAGES) - 1) + 0.85), ylim=(bottom, top))
    ax.axis("off")
    return fig, ax


def _row(ax, coloured: tuple[str, ...], tall: float, met: tuple[str, ...] = tuple(STAGES)) -> None:
    """The boxes and the arrows between them."""
    from matplotlib.patches import FancyBboxPatch

    for index, stage in enumerate(STAGES):
        on, x = stage in coloured, 1.6 * index
        look = {"facecolor": PALE, "edgecolor": GREY, "linewidth": 0.8}
        if on:
            look = {"facecolor": "#D9ECF7", "edgecolor": OKABE_ITO["blue"], "linewidth": 1.6}
        elif stage not in met:
            look |= {"facecolor": "none", "linestyle": (0, (3, 2))}
        rounded = "round,pad=0,rounding_size=0.12"
        ax.add_patch(FancyBboxPatch((x - NARROW / 2, -tall), NARROW, 2 * tall, boxstyle=rounded, **look))
        words = {"weight": "bold" if on else "normal", "color": "black" if on or stage in met else GREY}
        ax.text(x, 0, stage, **CENTRED, fontsize=9, **words)
        if index:
            arrow(ax, (x - 1.6 + NARROW / 2, 0.0), (x - NARROW / 2, 0.0))


def _policy(ax, stages: tuple[int, ...], name: str, does: str, colour: str, centre: float | None = None) -> None:
    """One of the policies, with an arrow down to each stage that it serves."""
    x = 1.6 * stages[0] if centre is None else 1.6 * centre - 0.8
    ax.text(x, 1.82, name, **CENTRED, fontsize=9.5, color=colour, weight="bold")
    ax.text(x, 1.46, does, **CENTRED, fontsize=8, color="#333333")
    for stage in stages:
        shift = 0.0 if len(stages) == 1 and centre is None else 0.25 * (1 if x > 1.6 * stage else -1)
        arrow(ax, (x, 1.26), (1.6 * stage + shift, 0.48), colour)


def _back(ax, floor: float, text: str | None, half: float) -> None:
    """From the step back to the next prompts: down, along the floor, up."""
    first, last = 0.0, 1.6 * (len(STAGES) - 1)
    ax.plot([last, last, first], [-half, floor, floor], color=GREY, linewidth=1.2, linestyle="-")
    arrow(ax, (first, floor), (first, -half))
    if text:
        ax.text((first + last) / 2, floor - 0.1, text, ha="center", va="top", fontsize=8, color="#333333")
