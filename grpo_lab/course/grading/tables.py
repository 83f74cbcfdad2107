"""CSV as teachers have it: from a spreadsheet or a platform, with commas or semicolons, with or without BOM."""

import csv
import io
from pathlib import Path


def read_table(path: Path, name: str, needed: tuple[str, ...], known: tuple[str, ...]) -> list[dict[str, str]]:
    """The rows, each a dict of the known columns; names of columns in any case.

    Args:
        path: of the file.
        name: of the argument, for messages.
        needed: columns that have to be there. known: all that are read; others are left alone.

    Raises:
        ValueError: naming the argument, the file and the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        raise ValueError(f"{name} is {path}; expected a CSV file in UTF-8 ({type(error).__name__})") from None
    first = text.partition("\n")[0]
    rows = list(csv.reader(io.StringIO(text), delimiter=";" if first.count(";") > first.count(",") else ","))
    head = [column.strip().lower() for column in rows[0]] if rows else []
    if missing := [column for column in needed if column not in head]:
        raise ValueError(f"{name} is {path}, which has no column {missing[0]!r}; expected {', '.join(known)}")
    found = []
    for number, row in enumerate(rows[1:], 2):
        if not any(cell.strip() for cell in row):
            continue
        if len(row) > len(head):
            raise ValueError(f"{name} is {path}, line {number} has {len(row)} cells; expected {len(head)}")
        cells = dict(zip(head, (cell.strip() for cell in row), strict=False))
        found.append({column: cells.get(column, "") for column in known} | {"line": str(number)})
    return found


def to_text(rows: list[list]) -> str:
    """CSV of the rows. A spreadsheet takes a cell that begins with `=` for a formula: it gets a quotation mark."""
    paper = io.StringIO()
    writer = csv.writer(paper, lineterminator="\n")
    writer.writerows([[_for_spreadsheet(cell) for cell in row] for row in rows])
    return paper.getvalue()


def _for_spreadsheet(cell):
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


def number(text: str, name: str, path: Path, line: str) -> float:
    """A number from a cell, with a point or a comma."""
    try:
        return float(text.replace(",", "."))
    except ValueError:
        raise ValueError(f"{name} is {path}, line {line} has {text!r}; expected a number") from None
