"""CSV as teachers have it: from a spreadsheet or a platform, with commas or semicolons, with or without BOM."""

import csv
import io
from pathlib import Path

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet would compute
MARK = "\ufeff"  # at the beginning of a file: without it, Excel reads names with accents as something else


def read_table(path: Path, name: str, needed: tuple[str, ...], known: tuple[str, ...]) -> list[dict[str, str]]:
    """The rows, each a dict of the known columns and "line"; names of columns in any case.

    Args:
        path: of the file.
        name: of the argument, for messages.
        needed: columns that have to be there. known: all that are read, "" where they are missing; other columns are
            in the rows too.

    Raises:
        ValueError: naming the argument, the file and the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"{name} is {path}, which is not there; expected a CSV file") from None
    except (OSError, UnicodeError) as error:
        raise ValueError(f"{name} is {path}; expected a CSV file in UTF-8 ({type(error).__name__})") from None
    first = text.partition("\n")[0]
    rows = list(csv.reader(io.StringIO(text), delimiter=";" if first.count(";") > first.count(",") else ","))
    head = [column.strip().lower().replace("e-mail", "email") for column in rows[0]] if rows else []
    if missing := [column for column in needed if column not in head]:
        raise ValueError(f"{name} is {path}, which has no column {missing[0]!r}; expected {', '.join(known)}")
    found = []
    for number, row in enumerate(rows[1:], 2):
        if not any(cell.strip() for cell in row):
            continue
        if len(row) > len(head):
            raise ValueError(f"{name} is {path}, line {number} has {len(row)} cells; expected {len(head)}")
        cells = {column: _typed(cell.strip()) for column, cell in zip(head, row, strict=False) if column}
        found.append(dict.fromkeys(known, "") | cells | {"line": str(number)})
    return found


def unread_columns(rows: list[dict[str, str]], known: tuple[str, ...]) -> list[str]:
    """The columns of a table that nobody reads."""
    return [column for column in (rows[0] if rows else {}) if column not in (*known, "line")]


def to_text(rows: list[list], *, for_people: bool = False) -> str:
    """CSV of the rows. A spreadsheet takes a cell that begins with `=` for a formula: it gets a quotation mark.

    for_people: rather than for a platform; it will be opened in a spreadsheet.
    """
    paper = io.StringIO(MARK if for_people else "")
    paper.seek(0, io.SEEK_END)
    writer = csv.writer(paper, lineterminator="\n")
    writer.writerows([[_for_spreadsheet(cell) for cell in row] for row in rows])
    return paper.getvalue()


def _for_spreadsheet(cell):
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in FORMULA else cell


def _typed(cell: str) -> str:
    """Without that quotation mark; 't Hooft keeps his."""
    return cell[1:] if cell[:1] == "'" and cell[1:2] in FORMULA else cell


def number(text: str, name: str, path: Path, line: str) -> float:
    """A number from a cell, with a point or a comma."""
    try:
        return float(text.replace(",", "."))
    except ValueError:
        raise ValueError(f"{name} is {path}, line {line} has {text!r}; expected a number") from None
