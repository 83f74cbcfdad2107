"""The figures of the series: their common look, diagrams, animations, and tokens coloured by value."""

from grpo_lab.teaching.plots.animation import animate, strip
from grpo_lab.teaching.plots.coloured_tokens import token_heat
from grpo_lab.teaching.plots.diagrams.loop import loop_diagram
from grpo_lab.teaching.plots.diagrams.memory import memory_bars, memory_over_a_step
from grpo_lab.teaching.plots.diagrams.policies import group_picture, prefix_tree, search_tree_diagram
from grpo_lab.teaching.plots.diagrams.tokens import cache_figure, ragged_batch
from grpo_lab.teaching.plots.intervals import band, mean_interval, t_quantile
from grpo_lab.teaching.plots.simplex import on_plane, plane_arrows, triangle
from grpo_lab.teaching.plots.style import OKABE_ITO, finish, use_style
from grpo_lab.teaching.plots.training_curves import logs_side_by_side, training_curves
