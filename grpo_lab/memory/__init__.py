"""Plan the memory that a run will take on a device before it starts, and find settings with which it fits."""

import warnings

from grpo_lab.base.display import GIB
from grpo_lab.config.precision import MODES
from grpo_lab.memory.planning import (
    RESERVE,
    MemoryPlan,
    all_candidates,
    choose_candidate,
    fit_to_cpu,
    fit_to_gpu,
    plan_memory,
)
from grpo_lab.models.shapes import shape_of

_RENAMED = {"plan": plan_memory, "choice": choose_candidate}


def __getattr__(name: str):
    """Return a function under its former name, with a warning."""
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function = _RENAMED[name]
    warnings.warn(f"{name} is called {function.__name__} now", DeprecationWarning, stacklevel=2)
    return function
