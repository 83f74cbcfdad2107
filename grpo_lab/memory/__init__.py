"""What a run will take of a device's memory, known before it starts; and what to turn down where it does not fit."""

from grpo_lab.commands.display import GIB
from grpo_lab.memory.choice import MODES, RESERVE, Way, choice
from grpo_lab.memory.planning import MemoryPlan, fitted, plan
from grpo_lab.models.shapes import shape_of
