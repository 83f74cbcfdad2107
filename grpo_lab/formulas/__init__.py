"""Show the equations of a function beside the lines of code that compute them, or beside their values in a call."""

import warnings

from grpo_lab.formulas.source import Equation, read_equations
from grpo_lab.formulas.views import Trace, show, trace


def __getattr__(name: str):
    """Return `read_equations` under its former name, with a warning."""
    if name != "equations":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("equations is called read_equations now", DeprecationWarning, stacklevel=2)
    return read_equations
