"""One look for every figure of the series, and what training and tokens look like while you watch."""

from grpo_lab.plots.figures import LivePlot, band, finish, mean_interval, t_quantile, use_style
from grpo_lab.plots.tokens import OKABE_ITO, token_heat

__all__ = [
    "OKABE_ITO",
    "LivePlot",
    "band",
    "finish",
    "mean_interval",
    "t_quantile",
    "token_heat",
    "use_style",
]
