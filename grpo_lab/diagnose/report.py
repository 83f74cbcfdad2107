"""What the command says of one run or of two, the curves, and what each metric means (metrics.md, also in docs/)."""

from pathlib import Path

from grpo_lab.commands.display import View, text_table
from grpo_lab.diagnose import conditions as c
from grpo_lab.diagnose.logs import Log
from grpo_lab.diagnose.rules import examined, notes

GLOSSARY = Path(__file__).with_name("metrics.md")
SHOWN = ("reward", "eval/reward", c.SPREAD, "entropy", c.LENGTH, c.CUT, "kl", c.GRADIENT, c.CLIPPED)
PANELS, BESIDE = 6, 2  # of a figure, and of a row of it
AROUND = 5  # steps before and after each one in the mean that is drawn, fewer near the two ends


def glossary() -> View:
    """All metrics, as a table."""
    table = GLOSSARY.read_text(encoding="utf-8").split("\n\n")[-1].rstrip()
    return View(table, table)


def report(log: Log) -> str:
    """One line for a healthy run; else what was found, the likeliest cause and the first remedy first."""
    found, blind = examined(log)
    lines = [f"{log.name}: {len(found) or 'no'} finding{'s' * (len(found) != 1)} up to step {log.rows[-1]['step']}"]
    if not found and log.has("reward"):
        lines[0] += f" (reward {ends(log, 'reward')})"
    for number, one in enumerate(found, 1):
        lines += ["", f"{number}. {one.name}, from step {one.step}: {one.evidence}"]
        lines += [f"   may come from: {cause}" for cause in one.causes]
        lines += [f"   try: {remedy}" for remedy in one.remedies]
        lines += [f"   source: {one.source}"]
    lines += [f"note: {note}" for note in notes(log)]
    if blind:
        names = ", ".join(f"{name} ({metric})" for name, metric in blind.items())
        lines.append(f"not looked at, since the log has too little of a metric: {names}")
    return "\n".join(lines)


def ends(log: Log, metric: str) -> str:
    """Such as "0.16 -> 0.94": its mean over the first and over the last quarter of its values."""
    values = log.points(metric)[1]
    part = max(1, len(values) // 4)
    return f"{values[:part].mean():.3g} -> {values[-part:].mean():.3g}" if len(values) else "none"


def side_by_side(logs: list[Log]) -> str:
    """A column for each run, a line for each metric that one of them has."""
    rows = [(name, *(ends(log, name) for log in logs)) for name in shown(logs)]
    return text_table(("at first -> at last", *(log.name for log in logs)), rows)


def shown(logs: list[Log]) -> list[str]:
    return [name for name in SHOWN if any(len(log.points(name)[0]) for log in logs)]


def figure(logs: list[Log]):
    """The curves of one run, or of several in the same panels, as a matplotlib figure."""
    import matplotlib.pyplot as plt

    from grpo_lab.teaching.plots.style import DASHES, OKABE_ITO, use_style

    use_style()
    names = [name for name in shown(logs) if not name.startswith("eval/")][:PANELS]
    rows = -(-len(names) // BESIDE)
    fig, axes = plt.subplots(rows, BESIDE, figsize=(7.2, 0.4 + 2.1 * rows), squeeze=False)
    for ax, name in zip(axes.flat, names, strict=False):
        for log, colour, dashes, mark in zip(logs, OKABE_ITO.values(), DASHES, "os", strict=False):
            steps, values = log.points(name)
            reach = [min(AROUND, i, len(values) - 1 - i) for i in range(len(values))]
            smooth = [values[i - r : i + r + 1].mean() for i, r in enumerate(reach)]
            ax.plot(steps, values, "-", color=colour, alpha=0.3, linewidth=1)
            ax.plot(steps, smooth, color=colour, linestyle=dashes, label=log.name)
            if name == "reward" and log.has("eval/reward"):
                ax.plot(*log.points("eval/reward"), mark, color=colour, label=f"{log.name}, held out")
        ax.set(xlabel="step", title=name)
        ax.locator_params(axis="x", integer=True)
    for ax in axes.flat[len(names) :]:
        ax.remove()
    fig.legend(*fig.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return fig
