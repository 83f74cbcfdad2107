"""Equations beside the lines of code that compute them, read from the live source.

`show(function)` sets equation, code and shape side by side; `trace(function, *args)` runs the function and sets each
equation beside the value that its line got; `formula_map()` lists every equation of the package, and refuses if one of
them and its line have drifted apart.
"""

from grpo_lab.formulas.catalogue import formula_map
from grpo_lab.formulas.source import Equation, check
from grpo_lab.formulas.source import read_equations as equations
from grpo_lab.formulas.views import Trace, show, trace
