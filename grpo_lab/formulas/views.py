"""Show a function as its equations: beside the code that computes them, or beside the values of a call."""

from collections.abc import Callable

from grpo_lab.display import View, display
from grpo_lab.formulas.layout import source_view, values_view
from grpo_lab.formulas.recording import recording
from grpo_lab.formulas.source import Equation, read_equations


def show(*functions: Callable) -> None:
    """Display equation | line of code | shape of each function: a table in a notebook, printed text in a shell."""
    for function in functions:
        display(source_view(function, _some_equations(function)).bundle())


def trace(function: Callable, *args, **kwargs) -> "Trace":
    """Run `function(*args, **kwargs)`; return its result with the value of each equation. A notebook displays it."""
    found = _some_equations(function)
    with recording(function, found) as values:
        result = function(*args, **kwargs)
    return Trace(function, found, values, result)


class Trace(View):
    """What a call computed. `result` is what it returned, `values["2.3"]` what the line of Eq. (2.3) got.

    Where a line ran several times `values` holds the last value and `passes["2.3"]` all of them; a line that the call
    did not reach is in neither. A line that assigns several variables has a tuple. Tensors are detached copies.
    """

    def __init__(self, function: Callable, found: list[Equation], passes: dict[str, list], result):
        self.result, self.passes = result, passes
        self.values = {tag: got[-1] for tag, got in passes.items()}
        view = values_view(function, found, passes)
        super().__init__(view.markdown, view.text)


def _some_equations(function: Callable) -> list[Equation]:
    found = read_equations(function)
    if not found:
        name = getattr(function, "__name__", function)
        raise ValueError(rf"function is {name}; expected one with lines of its docstring that end in \tag{{n.m}}")
    return found
