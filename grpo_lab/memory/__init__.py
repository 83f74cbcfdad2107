"""What a run will take of a device's memory, known before it starts; and what to turn down where it does not fit."""

from grpo_lab.memory.advice import Change
from grpo_lab.memory.planning import GIB, RESERVE, MemoryPlan, bytes_a_parameter, compare_modes, plan
from grpo_lab.models.sizes import shape_of

__all__ = [
    "GIB",
    "RESERVE",
    "Change",
    "MemoryPlan",
    "bytes_a_parameter",
    "compare_modes",
    "plan",
    "shape_of",
]
