"""Equations beside the lines of code that compute them, or the values that these lines got, from the live source."""

from grpo_lab.formulas.source import Equation
from grpo_lab.formulas.source import read_equations as equations
from grpo_lab.formulas.views import Trace, show, trace
