r"""Show the equations of a function beside the code that computes them, or beside their values in a call.

In a notebook the view is a pipe table in Markdown, because JupyterLab, VS Code, nbconvert and the viewers on the web
render it without scripts or styles. (In text/html, VS Code does not typeset formulas, and GitHub removes styles.) A `|`
would end a cell of the table, so it is written as \vert in formulas and as &#124; in code.

The values of a call are recorded without changing the source: the interpreter reports each line that it reaches
(`sys.settrace`). When it leaves an anchored statement, the variables that the statement has assigned are copied.
Functions called by the traced function are not traced.
"""

import html
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from textwrap import indent
from types import FrameType

from torch import Tensor

from grpo_lab.base.checks import InputError
from grpo_lab.base.display import View, display, markdown_table, tensor_lines
from grpo_lab.base.language import _, fill
from grpo_lab.formulas.source import Equation, read_equations

NBSP = "\u00a0"  # non-breaking space; browsers collapse several plain spaces into one
INDENT = " " * 8


def show(*functions: Callable) -> None:
    """Display the equations of functions beside their code and shapes: a table in a notebook, text in a shell."""
    for function in functions:
        display(source_view(function, _equations_of(function))._repr_mimebundle_())


def trace(function: Callable, *args, **kwargs) -> "Trace":
    """Run `function(*args, **kwargs)` and return its result with the values of its equations, as a `Trace`.

    A notebook displays the trace as a table.
    """
    equations = _equations_of(function)
    with recording(function, equations) as values:
        result = function(*args, **kwargs)
    return Trace(function, equations, values, result)


class Trace(View):
    """The values of a call, displayed as a table.

    Attributes:
        result: The result of the call.
        values: {tag: value} of each equation, such as `values["2.10"]`. If a line ran several times, the value is the
            last one; if it assigns several variables, the value is a tuple. Lines that the call did not reach are
            missing. Tensors are detached copies.
        passes: {tag: values} with the value of each time that the line ran.
    """

    def __init__(self, function: Callable, equations: list[Equation], passes: dict[str, list], result):
        self.result, self.passes = result, passes
        self.values = {tag: values_of_line[-1] for tag, values_of_line in passes.items()}
        view = values_view(function, equations, passes)
        super().__init__(view.rich, view.text)


def _equations_of(function: Callable) -> list[Equation]:
    """Return the equations of a function; raise InputError if it has none."""
    equations = read_equations(function)
    if not equations:
        name = getattr(function, "__name__", function)
        raise InputError(rf"function is {name}; expected one with lines of its docstring that end in \tag{{n.m}}")
    return equations


def source_view(function: Callable, equations: list[Equation]) -> View:
    """Make the view of the source, with a row for each equation: equation | line of code | shape."""
    rows = [
        (f"({e.tag})", math_cell(e.latex), _code_cell(e.code), _code_cell(e.shape.replace(" ", NBSP)))
        for e in equations
    ]
    text = [f"({e.tag})  {e.latex}\n{indent(f'{e.code}    # {e.shape}', INDENT)}" for e in equations]
    return _view(function, ("", "equation", "code", "shape"), rows, text)


def values_view(function: Callable, equations: list[Equation], passes: dict[str, list]) -> View:
    """Make the view of a call, with a row for each equation: equation | value.

    The value is the last one if the line ran several times.

    passes: {tag: values}, with one value for each time that the line ran.
    """
    rows, text = [], []
    for e in equations:
        lines = value_lines(e, passes.get(e.tag, []))
        cell = f"*{lines[0]}*" if e.tag not in passes else "<br>".join(map(_code_cell, lines))
        rows.append((f"({e.tag})", math_cell(e.latex), cell))
        text.append(f"({e.tag})  {e.latex}\n{indent(e.code, INDENT)}\n{indent(chr(10).join(lines), INDENT + '= ')}")
    return _view(function, ("", "equation", "value"), rows, text)


def value_lines(equation: Equation, values_of_line: list) -> list[str]:
    """Return the last value of an equation's line as text, beginning with the name and shape of the variable.

    values_of_line: One value for each time that the line ran.
    """
    if not values_of_line:
        return ["not reached in this call"]
    names = equation.names or ("returned",)
    parts = values_of_line[-1] if len(names) > 1 else [values_of_line[-1]]
    lines = [line for name, part in zip(names, parts, strict=True) for line in _describe(name, part)]
    return lines if len(values_of_line) == 1 else [f"the last of {len(values_of_line)} passes", *lines]


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
    title = re.sub(" (?=（)|(?<=：) ", "", " ".join(parts))  # no space next to Chinese brackets and colons
    markdown = f"{title}\n\n{markdown_table([word and _(word) for word in head], rows)}"
    return View(markdown, "\n\n".join([f"{function.__name__}{f' in {file}' if file else ''}: {summary}", *text]))


def math_cell(latex: str) -> str:
    """Return a formula as the cell of a table, without the `|` that would end the cell."""
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


@contextmanager
def recording(function: Callable, equations: list[Equation]) -> Iterator[dict[str, list]]:
    """Record the values of anchored statements while `function` runs in the context.

    Yields:
        {tag: values}, with one value for each time that the statement has run.
    """
    recorder = _ValueRecorder(inspect.unwrap(function).__code__, equations)
    previous_trace = sys.gettrace()  # a debugger or a coverage tool may have set one
    sys.settrace(recorder.on_call)
    try:
        yield recorder.values
    finally:
        sys.settrace(previous_trace)


class _ValueRecorder:
    def __init__(self, code, equations: list[Equation]):
        self.code, self.equations = code, equations
        self.values: dict[str, list] = {}
        self.frame: FrameType | None = None
        self.pending: Equation | None = None

    def on_call(self, frame, event, arg):
        if frame.f_code is not self.code or self.frame is not None:
            return None
        self.frame = frame
        return self.on_event

    def on_event(self, frame, event, arg):
        if event == "line":
            self._leave(frame)
            entered = (e for e in self.equations if e.lineno <= frame.f_lineno <= e.end_lineno)
            self.pending = self.pending or next(entered, None)
        elif event == "exception" and not issubclass(arg[0], StopIteration):
            self.pending = None
        elif event == "return":
            if self.pending and not self.pending.names:
                self._record(self.pending, arg)
            self._leave(frame, at_end=True)
            self.frame = None
        return self.on_event

    def _leave(self, frame, at_end: bool = False) -> None:
        """Record what the pending statement has assigned, if the interpreter has left it.

        The value of a `return` is recorded later, in `on_event`, since the end of a `with` may run before the return.
        """
        equation = self.pending
        if equation is None or not equation.names:
            return
        if not at_end and equation.lineno <= frame.f_lineno <= equation.end_lineno:
            return
        assigned = tuple(frame.f_locals[name] for name in equation.names)
        self._record(equation, assigned if len(assigned) > 1 else assigned[0])

    def _record(self, equation: Equation, value) -> None:
        self.values.setdefault(equation.tag, []).append(_copy(value))
        self.pending = None


def _copy(value):
    """Return a copy that is not affected if later lines change tensors in place."""
    if isinstance(value, tuple | list):
        return type(value)(map(_copy, value))
    return value.detach().clone() if isinstance(value, Tensor) else value
