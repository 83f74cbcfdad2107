"""The figures of the series: their common look, diagrams, animations, and tokens coloured by value."""

from grpo_lab.teaching.plots.curves import band, logs_side_by_side, mean_interval, t_quantile, training_curves
from grpo_lab.teaching.plots.diagrams import (
    group_picture,
    loop_diagram,
    on_plane,
    plane_arrows,
    prefix_tree,
    search_tree_diagram,
    triangle,
)
from grpo_lab.teaching.plots.memory import memory_bars, memory_over_a_step
from grpo_lab.teaching.plots.style import OKABE_ITO, animate, finish, strip, use_style
from grpo_lab.teaching.plots.tokens import cache_figure, ragged_batch, token_heat
