"""How results are shown: as Markdown in a notebook, as text in a shell; tables and sizes in one form everywhere."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

GIB = 2**30  # bytes
MAX_SHOWN, MAX_COLUMNS = 40, 8  # numbers of a tensor that are shown in full, and how many in a line


class View:
    """Something with a rich form, Markdown or HTML, which notebooks take, and a text form, which a shell prints."""

    def __init__(self, rich: str, text: str, kind: str = "text/markdown"):
        self.rich = rich
        self.text = text
        self.kind = kind

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {self.kind: self.rich, "text/plain": self.text}

    def __repr__(self) -> str:
        return self.text


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A pipe table, all columns aligned to the left."""
    lines = [head, (":--",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def text_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table for a shell: the first column to the left, the others to the right; a row may be short of cells."""
    lines = [[*line, *[""] * (len(head) - len(line))] for line in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    line_format = "  ".join(f"{{:{'>' if column else '<'}{width}}}" for column, width in enumerate(widths))
    return "\n".join(line_format.format(*line).rstrip() for line in lines)


def tensor_lines(value, most_columns: int = MAX_COLUMNS) -> list[str]:
    """The numbers of a tensor: a line for each run along the last axis, or one line that sums up a large tensor.

    value: a torch.Tensor. Torch is not imported here, since the doctor needs this module where torch is missing.
    """
    if value.ndim == 0:
        return _numbers(value)
    if not value.numel():
        return []
    fits = value.numel() <= MAX_SHOWN and value.shape[-1] <= most_columns
    return _rows(value) if fits else [_summary(value)]


def _rows(value) -> list[str]:
    """One line for each run along the last axis; an empty line between matrices, if there are several."""
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
    """Every element, all in one notation: four decimals, or with an exponent where that would lose the small ones."""
    flat = value.flatten().tolist()
    if not value.dtype.is_floating_point:
        return [str(number) for number in flat]
    sizes = [abs(number) for number in flat if number and abs(number) != float("inf") and number == number]
    plain = not sizes or (min(sizes) >= 1e-3 and max(sizes) < 1e5)
    return [f"{number + 0.0:.4f}" if plain else f"{number + 0.0:.3e}" for number in flat]


def _summary(value) -> str:
    if str(value.dtype) == "torch.bool":
        return f"True at {value.sum()} of {value.numel()}"
    finite = value[value.isfinite()].double()
    nonfinite = value.numel() - finite.numel()
    statistics = {"min": finite.min(), "mean": finite.mean(), "max": finite.max()} if finite.numel() else {}
    words = [f"{word} {number:.4g}" for word, number in statistics.items()]
    return ", ".join(words + ([f"{nonfinite} not finite"] if nonfinite else []))


def readable(path: Path) -> str:
    """The path as a reader wants it: relative to the repository, the working directory or the home directory."""
    path = path.absolute()
    for root, prefix in ((Path(__file__).parents[2], ""), (Path.cwd(), ""), (Path.home(), "~/")):
        if path.is_relative_to(root):
            return prefix + path.relative_to(root).as_posix()
    return path.as_posix()


def say(markdown: str, text: str | None = None) -> None:
    """Show a sentence or a table; `text` is its form for a shell, None for the same."""
    display({"text/markdown": markdown, "text/plain": text or markdown})


def prose(text: str) -> str:
    """Markdown in which a tag such as <think> stays to be seen; within `code` it does anyhow."""
    pieces = text.split("`")
    return "`".join(piece if i % 2 else piece.replace("<", "&lt;") for i, piece in enumerate(pieces))


def in_ipython() -> bool:
    """True in a notebook or an IPython shell. IPython is not imported for the question: where it runs, it is loaded."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def display(bundle: dict[str, str], metadata: dict | None = None) -> None:
    """Show the richest form of `bundle` (MIME type to content)."""
    if not in_ipython():
        print(bundle["text/plain"])
        return
    from IPython.display import display as ipython_display

    ipython_display(bundle, metadata=metadata or {}, raw=True)
