r"""Equations beside the lines of code that compute them, read from the live source.

`show(function)` sets equation, code and shape side by side; `trace(function, *args)` runs the function and sets each
equation beside the value that its line got; `formula_map()` lists every equation of the package, and refuses if one of
them and its line have drifted apart. `python -m grpo_lab.formulas` prints that list.

The form, in a raw docstring and in the code (one equation, one line, one tag; n is the notebook that teaches it):

    \mu_p = \frac{1}{G} \sum_i r_{p,i} \tag{2.5}

    mean = rewards.mean(-1, keepdim=True)  # (2.5)
"""

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType

from grpo_lab.display import View, display
from grpo_lab.formulas.layout import source_view, values_view
from grpo_lab.formulas.recording import recording
from grpo_lab.formulas.shapes import shapes
from grpo_lab.formulas.source import Equation, read_equations

__all__ = ["Equation", "Trace", "check", "equations", "formula_map", "show", "trace"]


def show(*functions: Callable) -> None:
    """Display equation | line of code | shape of each function: a table in a notebook, printed text in a shell."""
    for function in functions:
        found = _some_equations(function)
        display(source_view(function, found, shapes(function, found)).bundle())


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


def equations(function: Callable) -> list[Equation]:
    """The equations of a function, each with its statement, in order; an empty list if it has none."""
    return read_equations(function)


def check(function: Callable) -> None:
    """Raise ValueError unless tags and anchors of the function correspond one to one, in order, in a raw docstring."""
    read_equations(function)


def formula_map(modules: Iterable[ModuleType] | None = None) -> dict[str, Equation]:
    """Every equation of the modules (default: all of grpo_lab that carry some) by its tag, in the order of the tags.

    Raises:
        ValueError: where `check` raises for one of the functions, if a tag stands in two of them, or if an equation
            stands outside of every function's docstring, where nothing would check it.
    """
    found: dict[str, Equation] = {}
    for module in _package_modules() if modules is None else modules:
        before = len(found)
        for function in _functions(module):
            for equation in read_equations(function):
                if equation.tag in found:
                    both = f"{found[equation.tag].function} and {equation.function}"
                    raise ValueError(f"tag ({equation.tag}) stands twice: in {both}")
                found[equation.tag] = equation
        written = len(_tag_lines(inspect.getsource(module)))
        if written != len(found) - before:
            mapped = f"{len(found) - before} of the {written} lines"
            raise ValueError(rf"{module.__name__}: only {mapped} ending in a \tag stand in the docstring of a function")
    return dict(sorted(found.items(), key=lambda item: tag_key(item[0])))


def tag_key(tag: str) -> tuple[int, ...]:
    """Sorts "2.10" behind "2.9"."""
    return tuple(map(int, tag.split(".")))


def _some_equations(function: Callable) -> list[Equation]:
    found = read_equations(function)
    if not found:
        raise ValueError(rf"function is {function.__name__}; no line of its docstring ends in \tag{{n.m}}")
    return found


def _functions(module: ModuleType) -> Iterator[Callable]:
    """Functions and methods that the module defines, private ones too."""
    for value in vars(module).values():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        for part in vars(value).values() if inspect.isclass(value) else [value]:
            part = inspect.unwrap(getattr(part, "__func__", part))
            if not inspect.isfunction(part) or part.__module__ != module.__name__ or part.__name__ == "<lambda>":
                continue
            if part.__code__.co_filename != "<string>":  # a dataclass makes its methods itself: they have no source
                yield part


def _package_modules() -> list[ModuleType]:
    """Modules of grpo_lab with equations; not the course, whose exercises may repeat them, nor this one's examples."""
    root = Path(__file__).parents[1]
    names = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[0] in ("assets", "course") or parts[0] == "formulas":
            continue
        if _tag_lines(path.read_text(encoding="utf-8")):
            names.append(".".join(("grpo_lab", *parts)).removesuffix(".__init__"))
    return [importlib.import_module(name) for name in names]


def _tag_lines(source: str) -> list[str]:
    return re.findall(r"^.*\\tag\{\d+\.\d+\}\s*$", source, re.MULTILINE)


def main() -> None:
    """Print every equation with the function and line that compute it, and their number."""
    found = formula_map()
    for tag, equation in found.items():
        print(f"({tag})".ljust(8) + f"{equation.function}, line {equation.lineno}: {equation.code.splitlines()[0]}")
    functions = {equation.function for equation in found.values()}
    print(f"{len(found)} equations mapped one to one to lines of code, in {len(functions)} functions")
