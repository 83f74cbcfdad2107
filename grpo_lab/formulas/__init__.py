"""Show the equations of a function beside the lines of code that compute them, or beside the values of a call."""

from grpo_lab.formulas.source import Equation
from grpo_lab.formulas.source import read_equations as equations
from grpo_lab.formulas.views import Trace, show, trace
