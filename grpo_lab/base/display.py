"""Showing results as Markdown in a notebook and as text in a shell: sentences, tables and tensors."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

GIB = 2**30  # bytes
MAX_ELEMENTS, MAX_COLUMNS = 40, 8  # a larger tensor, or one with a longer last axis, is shown as a summary


class View:
    """An object that a notebook shows as Markdown or HTML and a shell prints as text.

    rich: The Markdown or HTML.
    text: The text for a shell.
    mime_type: The MIME type of `rich`.
    """

    def __init__(self, rich: str, text: str, mime_type: str = "text/markdown"):
        self.rich = rich
        self.text = text
        self.mime_type = mime_type

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {self.mime_type: self.rich, "text/plain": self.text}

    def __repr__(self) -> str:
        return self.text


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with all columns aligned to the left."""
    lines = [head, (":--",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def text_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table for a shell, with the first column aligned to the left and the others to the right.

    A row with fewer cells than `head` is filled up with empty cells.
    """
    lines = [[*line, *[""] * (len(head) - len(line))] for line in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    line_format = "  ".join(f"{{:{'>' if column else '<'}{width}}}" for column, width in enumerate(widths))
    return "\n".join(line_format.format(*line).rstrip() for line in lines)


def tensor_lines(value, max_columns: int = MAX_COLUMNS) -> list[str]:
    """Return the elements of a tensor, a line for each row along the last axis, or a one-line summary if it is large.

    value: A torch.Tensor. This module does not import torch, since the command `doctor` also runs without it.
    max_columns: Largest size of the last axis of a tensor whose elements are listed.
    """
    if value.ndim == 0:
        return _numbers(value)
    if not value.numel():
        return []
    fits = value.numel() <= MAX_ELEMENTS and value.shape[-1] <= max_columns
    return _rows(value) if fits else [_summary(value)]


def _rows(value) -> list[str]:
    """Return one line for each row along the last axis, with an empty line between matrices."""
    columns = value.shape[-1]
    numbers = _numbers(value)
    lines = []
    width = max(map(len, numbers))
    for start in range(0, len(numbers), columns):
        if value.ndim > 2 and start and start % (columns * value.shape[-2]) == 0:
            lines.append("")
        lines.append("  ".join(number.rjust(width) for number in numbers[start : start + columns]))
    return lines


def _numbers(value) -> list[str]:
    """Return each element as a string: with four decimals, or all with an exponent if some are very small or large."""
    flat = value.flatten().tolist()
    if not value.dtype.is_floating_point:
        return [str(number) for number in flat]
    sizes = [abs(number) for number in flat if number and abs(number) != float("inf") and number == number]
    has_decimals = not sizes or (min(sizes) >= 1e-3 and max(sizes) < 1e5)
    # Adding 0.0 turns -0.0 into 0.0.
    return [f"{number + 0.0:.4f}" if has_decimals else f"{number + 0.0:.3e}" for number in flat]


def _summary(value) -> str:
    if str(value.dtype) == "torch.bool":
        return f"True at {value.sum()} of {value.numel()}"
    finite = value[value.isfinite()].double()
    nonfinite = value.numel() - finite.numel()
    statistics = {"min": finite.min(), "mean": finite.mean(), "max": finite.max()} if finite.numel() else {}
    words = [f"{word} {number:.4g}" for word, number in statistics.items()]
    return ", ".join(words + ([f"{nonfinite} not finite"] if nonfinite else []))


def short_path(path: Path) -> str:
    """Return a path relative to the repository, the working directory or the home directory; else the full path."""
    path = path.absolute()
    for root, prefix in ((Path(__file__).parents[2], ""), (Path.cwd(), ""), (Path.home(), "~/")):
        if path.is_relative_to(root):
            return prefix + path.relative_to(root).as_posix()
    return path.as_posix()


def say(markdown: str, text: str | None = None) -> None:
    """Show a sentence or a table in a notebook or a shell.

    text: The form for a shell; None for the Markdown itself.
    """
    display({"text/markdown": markdown, "text/plain": text or markdown})


def escape_tags(text: str) -> str:
    """Escape "<" in Markdown outside of `code`, so that a tag such as <think> is visible."""
    pieces = text.split("`")  # every second piece is code
    return "`".join(piece if i % 2 else piece.replace("<", "&lt;") for i, piece in enumerate(pieces))


def in_ipython() -> bool:
    """Return True in a notebook or an IPython shell, in which IPython is already imported."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def display(bundle: dict[str, str], metadata: dict | None = None) -> None:
    """Show the contents of a bundle in IPython, or print its plain text elsewhere.

    bundle: The contents by MIME type, with one for "text/plain".
    metadata: Metadata of the output in a notebook, by MIME type.
    """
    if not in_ipython():
        print(bundle["text/plain"])
        return
    from IPython.display import display as ipython_display

    ipython_display(bundle, metadata=metadata or {}, raw=True)
