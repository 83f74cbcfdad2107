"""What a check says, as text and as HTML. A status is always a word and a sign too, never a colour alone."""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from grpo_lab.course.checking.plain_data import Other, Record
from grpo_lab.course.exercise import Case
from grpo_lab.display import MAX_COLUMNS, fits, tensor_lines

MAX_LINES = 100
_COLUMNS = 2 * MAX_COLUMNS
_STRESS = re.compile(r"(?<![\w*])\*(\w[^*\n]{0,60}?)\*(?![\w*])")
TITLES = {"right": "right", "wrong": "not right yet", "not started": "not written yet", "form": "not right yet"}
SIGNS = {"right": "✓", "wrong": "✗", "not started": "○", "form": "✗"}
COLOURS = {"right": "#009E73", "wrong": "#D55E00", "not started": "#808080", "form": "#D55E00"}
# What is said about code that cannot be judged by its numbers.
FAULTS = {
    "signature": "Your function has other arguments than the stub: {message}. Copy the first lines of the stub, and "
    "leave them as they are.",
    "endless": "Your function did not come to an end and was stopped. Is there a loop whose condition never changes?",
    "hang": "Your function did not come to an end, and could not be stopped: it waits inside a call such as sleep, or "
    "works on something huge. Restart the kernel before you go on.",
    "flood": "Your function printed without end and was stopped. Take the print out, or print a shape instead.",
    "exit": "Your function ends the program (exit, quit, sys.exit or an interrupt of its own). Return a value instead.",
    "input": "Your function waits for somebody to type something (input). All that it needs is in its arguments.",
    "patched": "Your code replaces parts of torch, of Python or of this package: {patched}. They are back in place, as "
    "a check against changed parts would mean nothing. Choose another name for what is yours.",
    "library": "Your function calls the library's own {message}, directly or through another of its functions. That is "
    "for you to write in this assignment: where your work is marked, the library does not have it.",
    "device": "All numbers are right. On a GPU this would fail, though: {message}. Make new tensors on the device of "
    "the arguments, as x.new_zeros(...), torch.zeros_like(x) or device=x.device do.",
}


@dataclass(frozen=True)
class Part:
    """kind: "say" (sentences), "values" (lines in fixed width under a title) or "equation" (its tag is the title)."""

    kind: str
    text: str
    title: str = ""


@dataclass(frozen=True)
class Verdict:
    """The answer of `check`.

    status: "right", "wrong", "not started" or "form". fault: with "form" which: "signature", "endless", "hang",
    "flood", "exit", "input", "patched", "error", "kind", "shape", "dtype", "inplace", "detached", "library", "device".
    misconceptions: names of the mistakes that were recognised. case: the smallest failing one, None if none fails.
    got, expected: of that case, as text. equation: the tag that is broken, "" if that is not known.
    failing: the indices of all cases that fail. seconds: what the check took. properties: which are fulfilled.
    """

    exercise: str
    status: str
    message: str
    parts: tuple[Part, ...] = field(default=(), repr=False)
    fault: str = ""
    misconceptions: tuple[str, ...] = ()
    case: Case | None = None
    got: str = ""
    expected: str = ""
    equation: str = ""
    failing: tuple[int, ...] = ()
    seconds: float = 0.0
    properties: dict[str, bool] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        return self.status == "right"

    def __repr__(self) -> str:
        head = f"{SIGNS[self.status]} {self.exercise}: {TITLES[self.status]}"
        return "\n\n".join([head, *(_text(part) for part in self.parts)])

    def _repr_html_(self) -> str:
        # The page's own colours are inherited: light, dark, and printed.
        box = f"border-left:0.4em solid {COLOURS[self.status]};padding:0.2em 1em;max-width:60em;color:inherit"
        head = f"{SIGNS[self.status]} <code>{html.escape(self.exercise)}</code>: {TITLES[self.status]}"
        body = "".join(_html(part) for part in self.parts)
        return f'<div role="status" style="{box}"><p><b>{head}</b></p>{body}</div>'


def lines(name: str, value: Any) -> list[str]:
    """A value readably, under its name: small tensors in full, large ones summarised; of many parts the first."""
    found = _lines(name, value)
    return found if len(found) <= MAX_LINES else [*found[:MAX_LINES], f"… and {len(found) - MAX_LINES} lines more"]


def _lines(name: str, value: Any) -> list[str]:
    if isinstance(value, Tensor):
        return _tensor_lines(name, value)
    if isinstance(value, Record):
        value = value.fields
    if isinstance(value, dict) and any(isinstance(part, Tensor | list | dict) for part in value.values()):
        return [line for key, part in value.items() for line in _lines(f"{name}[{key!r}]", part)]
    if isinstance(value, list) and any(isinstance(part, Tensor) for part in value):
        return [line for key, part in enumerate(value) for line in _lines(f"{name}[{key}]", part)]
    return [f"{name} = {short(value)}"]


def most_different(got: Any, expected: Any) -> str:
    """Where two tensors of one shape differ most, if what `lines` shows of them does not tell."""
    if not (isinstance(got, Tensor) and isinstance(expected, Tensor) and got.is_floating_point()):
        return ""
    if got.shape != expected.shape or (lines("", got) != lines("", expected) and fits(got, _COLUMNS)):
        return ""
    gap = (got.double() - expected.double()).abs().nan_to_num(nan=0.0)
    if not gap.any():
        return ""
    place = tuple(int(i) for i in (gap == gap.max()).nonzero()[0])
    where = f"Most at {list(place)}" if place else "With more digits"
    return f"{where}: {got[place]:.9g}, where {expected[place]:.9g} is expected."


def short(value: Any) -> str:
    """One line, of bounded length."""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value.kind if isinstance(value, Other) else repr(value)
    return text if len(text) <= 300 else text[:300] + " …"


def count(number: int | float, word: str) -> str:
    """Such as "1 case", "2 cases", "2.5 points"."""
    return f"{number:g} {word}" if number == 1 else f"{number:g} {word}s"


def prose(text: str) -> str:
    """HTML of sentences with `code` and *stress* in them."""
    pieces = html.escape(text).split("`")
    parts = [f"<code>{p}</code>" if i % 2 else _STRESS.sub(r"<em>\1</em>", p) for i, p in enumerate(pieces)]
    return "".join(parts).replace("\n", "<br>")


def _tensor_lines(name: str, value: Tensor) -> list[str]:
    dtype = str(value.dtype).removeprefix("torch.")
    if not value.ndim:
        return [f"{name} = {tensor_lines(value)[0]}"]
    numbers = tensor_lines(value, most_columns=_COLUMNS)
    return [f"{name}, shape {tuple(value.shape)}, {dtype}", *(f"    {line}" for line in numbers)]


def _text(part: Part) -> str:
    if part.kind == "values":
        return "\n".join([part.title, *(f"    {line}" for line in part.text.split("\n"))])
    if part.kind == "equation":
        return f"Eq. ({part.title})" + (f"  {part.text}" if part.text else "")
    return part.text


def _html(part: Part) -> str:
    if part.kind == "values":
        block = "margin:0.2em 0 0.8em;overflow-x:auto;background:transparent;color:inherit"
        return f'<div>{prose(part.title)}</div><pre style="{block}">{html.escape(part.text)}</pre>'
    if part.kind == "equation":
        latex = f"$$ {html.escape(part.text)} \\tag{{{part.title}}} $$" if part.text else ""
        return f"<div>Eq. ({part.title})</div>{latex}"
    return f"<p>{prose(part.text)}</p>"


def summary(parts: Sequence[Part]) -> str:
    return "\n".join(part.text for part in parts if part.kind == "say")
