"""What the command says of one run or of two: the findings in words, the numbers side by side, the curves."""

import numpy as np
from jaxtyping import Float

from grpo_lab.diagnose import conditions as c
from grpo_lab.diagnose.logs import Log
from grpo_lab.diagnose.rules import RULES, diagnose, notes
from grpo_lab.display import text_table

SHOWN = ("reward", "eval/reward", c.SPREAD, "entropy", c.LENGTH, c.CUT, "kl", c.GRADIENT, c.CLIPPED)
PANELS, BESIDE = 6, 2  # of a figure, and of a row of it
AROUND = 5  # steps before and after each one in the mean that is drawn, fewer near the two ends


def report(log: Log) -> str:
    """One line for a healthy run; else what was found, the likeliest cause and the first remedy first."""
    found = diagnose(log)
    last = int(log.rows[-1]["step"])
    lines = [f"{log.name}: {len(found) or 'no'} finding{'s' * (len(found) != 1)} up to step {last}"]
    if not found:
        lines[0] += f" ({ends(log, 'reward')})" if log.has("reward") else ""
    for number, one in enumerate(found, 1):
        lines += ["", f"{number}. {one.name}, from step {one.step}: {one.evidence}"]
        lines += [f"   may come from: {cause}" for cause in one.causes]
        lines += [f"   try: {remedy}" for remedy in one.remedies]
        lines += [f"   source: {one.source}"]
    lines += [f"note: {note}" for note in notes(log)]
    if blind := [f"{rule.name} ({', '.join(missing)})" for rule in RULES if (missing := rule.missing(log))]:
        lines.append(f"not looked at, since the log lacks a metric: {', '.join(blind)}")
    return "\n".join(lines)


def ends(log: Log, metric: str) -> str:
    """Such as "reward 0.16 -> 0.94": its mean over the first and over the last quarter of its values."""
    values = log.points(metric)[1]
    part = max(1, len(values) // 4)
    numbers = "none" if not len(values) else f"{values[:part].mean():.3g} -> {values[-part:].mean():.3g}"
    return f"{metric} {numbers}"


def side_by_side(logs: list[Log]) -> str:
    """A column for each run, a line for each metric that one of them has."""
    rows = [(name, *(ends(log, name).split(" ", 1)[1] for log in logs)) for name in shown(logs)]
    return text_table(("at first -> at last", *(log.name for log in logs)), rows)


def shown(logs: list[Log]) -> list[str]:
    return [name for name in SHOWN if any(len(log.points(name)[0]) for log in logs)]


def figure(logs: list[Log]):
    """The curves of one run, or of several in the same panels, as a matplotlib figure."""
    import matplotlib.pyplot as plt

    from grpo_lab.plots.style import DASHES, OKABE_ITO, use_style

    use_style()
    names = [name for name in shown(logs) if not name.startswith("eval/")][:PANELS]
    rows = -(-len(names) // BESIDE)
    fig, axes = plt.subplots(rows, BESIDE, figsize=(7.2, 0.4 + 2.1 * rows), squeeze=False)
    for ax, name in zip(axes.flat, names, strict=False):
        for log, colour, dashes in zip(logs, OKABE_ITO.values(), DASHES, strict=False):
            steps, values = log.points(name)
            ax.plot(steps, values, "-", color=colour, alpha=0.3, linewidth=1)
            ax.plot(steps, smoothed(values), color=colour, linestyle=dashes, label=log.name)
            if name == "reward" and len(log.points("eval/reward")[0]):
                ax.plot(*log.points("eval/reward"), "o", color=colour, label="held-out reward")
        ax.set(xlabel="step", ylabel=name)
    for ax in axes.flat[len(names) :]:
        ax.remove()
    handles = {line.get_label(): line for line in fig.axes[0].lines if not line.get_label().startswith("_")}
    fig.legend(handles.values(), handles, loc="outside upper center", ncols=2)
    return fig


def smoothed(values: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    """The mean over the steps around each one: as many before it as after it, so that a trend does not shift it."""
    reach = [min(AROUND, i, len(values) - 1 - i) for i in range(len(values))]
    return np.array([values[i - r : i + r + 1].mean() for i, r in enumerate(reach)])
