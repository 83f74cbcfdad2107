"""The memory that a run will take on a device, known before it starts; and what to turn down where it does not fit."""

from grpo_lab.base.display import GIB
from grpo_lab.config.precision import MODES
from grpo_lab.memory.planning import RESERVE, MemoryPlan, all_candidates, choice, fit_to_cpu, fit_to_gpu, plan
from grpo_lab.models.shapes import shape_of
