"""Equations beside the lines of code that compute them, read from the live source."""

from grpo_lab.formulas.catalogue import Trace, check, equations, formula_map, show, trace
from grpo_lab.formulas.source import Equation

__all__ = [
    "Equation",
    "Trace",
    "check",
    "equations",
    "formula_map",
    "show",
    "trace",
]
