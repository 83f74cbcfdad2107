"""A file with one JSON value a line, in UTF-8; what cannot be read is named by file and line."""

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
PACKED = (b"\x1f\x8b", b"PK\x03\x04", b"PAR1")  # gzip, zip, parquet


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
            if number == 1 and line.startswith(PACKED):
                raise ValueError(f"{file.name} is a packed file (gzip, zip or parquet); expected text: unpack it first")
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
        value = json.loads(text, parse_constant=_no_number, object_pairs_hook=_each_once)
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # half a letter, such as "\\ud83d", has no bytes
        return value
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{place} is no JSON: {error.msg.removesuffix(' at')} at column {error.colno}, {text.strip()!r:.60}"
        ) from error
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"{place} cannot be used: {reason}") from error


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in found if names.count(name) > 1)!r} stands twice in one object")
    return found


def _no_number(name: str):
    raise ValueError(f"{name} is no number of JSON")
