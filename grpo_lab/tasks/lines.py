"""A file with one JSON value a line, in UTF-8; what cannot be read is named by file and line."""

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def json_lines(file: Path) -> Iterator[tuple[int, Any]]:
    """The value of each line with the line's number, from 1; empty lines are passed over, and so is a byte-order mark.

    Raises:
        ValueError: for a line that is not UTF-8 or not JSON; the message has the file, the line and what to do.
    """
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            place = f"{file.name}, line {number}"
            if number == 1 and line.startswith(UTF_16):
                raise ValueError(f"{file.name} is in UTF-16; expected UTF-8: save it again in that encoding")
            text = _decoded(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line, place)
            if text.strip():
                yield number, _value(text, place)


def _decoded(line: bytes, place: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{place} is not UTF-8: byte {error.start + 1} is 0x{line[error.start]:02x}; save the file as UTF-8"
        ) from error


def _value(text: str, place: str) -> Any:
    try:
        value = json.loads(text, parse_constant=_no_number)
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # half a letter, such as "\\ud83d", has no bytes
        return value
    except json.JSONDecodeError as error:
        raise ValueError(f"{place} is no JSON: {error.msg} at column {error.colno}, {text.strip()!r:.60}") from error
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"{place} cannot be used: {reason}") from error


def _no_number(name: str):
    raise ValueError(f"{name} is no number of JSON")
