"""Plan the memory that a run will take on a device before it starts, and find settings with which it fits."""

from grpo_lab.base.display import GIB
from grpo_lab.config.precision import GPU_PRECISIONS
from grpo_lab.memory.planning import (
    RESERVE_BYTES,
    MemoryPlan,
    all_candidates,
    choose_candidate,
    fit_to_memory,
    plan_memory,
)
from grpo_lab.models.shapes import shape_of
