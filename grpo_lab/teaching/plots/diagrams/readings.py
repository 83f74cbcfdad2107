"""Figures of logs: the metrics of several runs side by side."""


def logs_side_by_side(logs: dict[str, dict[str, list[float]]], panels: dict[str, str], log_scale: str, beside):
    """Make a figure with a column for each log and a row for each metric.

    Args:
        logs: The name of a log -> the values of each metric by step.
        panels: The name of a metric -> the label of its row.
        log_scale: The name of the metric that is drawn on a logarithmic scale.
        beside: The name of a metric -> its values in a run to compare with, drawn as dashed lines in every column.
    """
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(len(panels), len(logs), figsize=(7.2, 1.2 * len(panels)), sharex=True, sharey="row")
    for (name, log), column in zip(logs.items(), axes.T, strict=True):
        column[0].set_title(name)
        for (metric, label), ax in zip(panels.items(), column, strict=True):
            ax.plot(range(1, len(beside[metric]) + 1), beside[metric], "--", linewidth=1)
            ax.plot(range(1, len(log[metric]) + 1), log[metric], "-", color="black")
            ax.set(yscale="log" if metric == log_scale else "linear", ymargin=0.15)
            if name == next(iter(logs)):
                ax.set_ylabel(label)
    fig.supxlabel("step", fontsize=10)
    return fig
