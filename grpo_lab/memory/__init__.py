"""Plan the memory that a run will take on a device before it starts, and find settings with which it fits."""

from grpo_lab.base.display import GIB
from grpo_lab.config.precision import MODES
from grpo_lab.memory.planning import RESERVE, MemoryPlan, all_candidates, choice, fit_to_cpu, fit_to_gpu, plan
from grpo_lab.models.shapes import shape_of
