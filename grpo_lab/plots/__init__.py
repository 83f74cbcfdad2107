"""One look for every figure of the series, and what training and tokens look like while you watch."""

from grpo_lab.plots.diagrams.batch import batch_figure
from grpo_lab.plots.diagrams.cache import cache_figure
from grpo_lab.plots.diagrams.clipping import clip_regions
from grpo_lab.plots.diagrams.loop import loop_diagram
from grpo_lab.plots.diagrams.masks import ragged_batch
from grpo_lab.plots.diagrams.memory import memory_bars
from grpo_lab.plots.diagrams.prefixes import prefix_tree
from grpo_lab.plots.diagrams.push import push_bars
from grpo_lab.plots.diagrams.readings import marked_texts
from grpo_lab.plots.diagrams.sorting import position_map
from grpo_lab.plots.diagrams.weights import weights_timeline
from grpo_lab.plots.intervals import band, mean_interval, t_quantile
from grpo_lab.plots.live import LivePlot
from grpo_lab.plots.sliders import explore
from grpo_lab.plots.style import OKABE_ITO, finish, use_style
from grpo_lab.plots.tokens import token_heat
