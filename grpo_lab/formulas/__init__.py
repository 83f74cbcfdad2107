"""Show the equations of a function beside the lines of code that compute them, or beside their values in a call."""

from grpo_lab.formulas.source import Equation, read_equations
from grpo_lab.formulas.views import Trace, show, trace
