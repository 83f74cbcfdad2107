"""The lines of a text file, and the JSON in them; an InputError stands in place of a line that cannot be read."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_lab.base.checks import InputError


def text_lines(file: Path) -> Iterator[tuple[int, str | InputError]]:
    """Yield the number of each line, from 1, and the line with its end, or an InputError if it is not UTF-8."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except ValueError as error:
                yield number, _line_error(file, number, error, line)


def json_lines(file: Path) -> Iterator[tuple[int, Any]]:
    """Yield the number of each line of a JSON Lines file, and its value, or an InputError if it is not JSON.

    Empty lines are skipped.
    """
    for number, line in text_lines(file):
        if isinstance(line, InputError):
            yield number, line
        elif text := line.strip():
            try:
                yield number, checked_json(json.loads(text))
            except (ValueError, RecursionError) as error:
                yield number, _line_error(file, number, error, line.encode("utf-8", "replace"))


def checked_json(value: Any) -> Any:
    """Return the value; raise ValueError if it is not JSON: a NaN, or an unpaired surrogate such as "\\ud83d"."""
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    return value


def _line_error(file: Path, number: int, error: Exception, line: bytes) -> InputError:
    expected_format = "UTF-8" if file.suffix in (".csv", ".tsv") else "JSON in UTF-8"
    reason = getattr(error, "msg", error)
    line_error = InputError(f"{file.name}, line {number}", problem=f"is not {expected_format}: {reason}, {line[:60]!r}")
    line_error.__cause__ = error
    return line_error
