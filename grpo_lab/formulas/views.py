r"""Show a function as its equations: beside the code that computes them, or beside the values of a call.

In a notebook that is a pipe table of Markdown, which JupyterLab, VS Code, nbconvert and the viewers on the web typeset
without scripts or styles. (In text/html, VS Code leaves formulas as they are, and GitHub strips styles.) Inside a cell
`|` would end the cell, so formulas say \vert, and code says &#124;.
"""

import html
import inspect
import re
from collections.abc import Callable, Sequence
from textwrap import indent

from torch import Tensor

from grpo_lab.base.checks import InputError
from grpo_lab.base.display import View, display, markdown_table, tensor_lines
from grpo_lab.base.language import _, fill
from grpo_lab.formulas.recording import recording
from grpo_lab.formulas.source import Equation, read_equations

NBSP = "\u00a0"  # plain spaces would collapse
INDENT = " " * 8


def show(*functions: Callable) -> None:
    """Display equation | line of code | shape of each function: a table in a notebook, printed text in a shell."""
    for function in functions:
        display(source_view(function, _some_equations(function))._repr_mimebundle_())


def trace(function: Callable, *args, **kwargs) -> "Trace":
    """Run `function(*args, **kwargs)`; return its result with the value of each equation. A notebook displays it."""
    equations = _some_equations(function)
    with recording(function, equations) as values:
        result = function(*args, **kwargs)
    return Trace(function, equations, values, result)


class Trace(View):
    """The values of a call: `result` is what it returned, `values["2.3"]` what the line of Eq. (2.10) got.

    Where a line ran several times `values` holds the last value and `passes["2.3"]` all of them; a line that the call
    did not reach is in neither. A line that assigns several variables has a tuple. Tensors are detached copies.
    """

    def __init__(self, function: Callable, equations: list[Equation], passes: dict[str, list], result):
        self.result, self.passes = result, passes
        self.values = {tag: values_of_line[-1] for tag, values_of_line in passes.items()}
        view = values_view(function, equations, passes)
        super().__init__(view.rich, view.text)


def _some_equations(function: Callable) -> list[Equation]:
    equations = read_equations(function)
    if not equations:
        name = getattr(function, "__name__", function)
        raise InputError(rf"function is {name}; expected one with lines of its docstring that end in \tag{{n.m}}")
    return equations


def source_view(function: Callable, equations: list[Equation]) -> View:
    """The view with a row an equation: equation | line of code | shape."""
    rows = [
        (f"({e.tag})", _math(e.latex), _code_cell(e.code), _code_cell(e.shape.replace(" ", NBSP))) for e in equations
    ]
    text = [f"({e.tag})  {e.latex}\n{indent(f'{e.code}    # {e.shape}', INDENT)}" for e in equations]
    return _view(function, ("", "equation", "code", "shape"), rows, text)


def values_view(function: Callable, equations: list[Equation], values: dict[str, list]) -> View:
    """The view with a row an equation: equation | its value, the last one where the line ran several times."""
    rows, text = [], []
    for e in equations:
        lines = value_lines(e, values.get(e.tag, []))
        cell = f"*{lines[0]}*" if e.tag not in values else "<br>".join(map(_code_cell, lines))
        rows.append((f"({e.tag})", _math(e.latex), cell))
        text.append(f"({e.tag})  {e.latex}\n{indent(e.code, INDENT)}\n{indent(chr(10).join(lines), INDENT + '= ')}")
    return _view(function, ("", "equation", "value"), rows, text)


def value_lines(equation: Equation, values: list) -> list[str]:
    """The last value that the line of an equation got, as text: its name and shape first."""
    if not values:
        return ["not reached in this call"]
    names = equation.names or ("returned",)
    parts = values[-1] if len(names) > 1 else [values[-1]]
    lines = [line for name, part in zip(names, parts, strict=True) for line in _describe(name, part)]
    return lines if len(values) == 1 else [f"the last of {len(values)} passes", *lines]


def _describe(name: str, value) -> list[str]:
    if not isinstance(value, Tensor):
        return [f"{name} = {value!r}"]
    if value.ndim == 0:
        return [f"{name} = {tensor_lines(value)[0]}"]
    return [f"{name}, shape {tuple(value.shape)}", *tensor_lines(value)]


def _view(function: Callable, head: tuple[str, ...], rows: Sequence[tuple[str, ...]], text: list[str]) -> View:
    function = inspect.unwrap(function)
    summary = (inspect.getdoc(function) or "").partition("\n")[0]
    file = "" if function.__module__ == "__main__" else f"{function.__module__.replace('.', '/')}.py"
    name = f"**`{function.__name__}`**"
    parts = [name, _(fill("in `{0}`:", file)), _(summary)] if file else [f"{name}:", _(summary)]
    title = re.sub(" (?=（)|(?<=：) ", "", " ".join(parts))  # beside wide characters stands none
    markdown = f"{title}\n\n{markdown_table([word and _(word) for word in head], rows)}"
    return View(markdown, "\n\n".join([f"{function.__name__}{f' in {file}' if file else ''}: {summary}", *text]))


def _math(latex: str) -> str:
    without_bars = latex.replace(r"\|", r"\Vert ").replace("|", r"\vert ")
    return rf"$\displaystyle {without_bars}$"


def _code_cell(code: str) -> str:
    return "<br>".join(map(_code_line, code.split("\n")))


def _code_line(line: str) -> str:
    if not line.strip():
        return NBSP if line else ""
    line = NBSP * (len(line) - len(line.lstrip())) + re.sub("  +", lambda run: NBSP * len(run[0]), line.lstrip())
    if "|" not in line and "`" not in line:
        return f"`{line}`"
    special = {ord(c): f"&#{ord(c)};" for c in r"|`\*_[]~$@"}
    return f"<code>{html.escape(line, quote=False).translate(special)}</code>"
