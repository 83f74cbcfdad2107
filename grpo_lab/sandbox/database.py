"""A SQLite database that a model asks and nobody writes.

Four walls, each for itself: the file is opened read only; an authorizer lets through what reads; a query has a limit of
seconds; and there is a limit of rows and of bytes. What a query keeps in memory meanwhile has none of its own.
"""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from grpo_lab.base.checks import InputError, InputFileError

ROWS, SECONDS, BYTES = 20, 2.0, 100_000  # that a model gets to read; of a query; of a value, and of a statement
SHOWN_TABLES, LONGEST_PATTERN = 20, 100  # a longer LIKE could take minutes in one step, which nothing ends
READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}


class QueryError(ValueError):
    """A query that is refused, fails or takes too long; the text is for the model that wrote it."""


def query_database(path: Path, sql: str, most: int = ROWS) -> tuple[list[tuple], bool]:
    """Ask a database one SELECT statement: the first rows of the answer, and whether there are more.

    Raises:
        QueryError: for a statement that does not only read, has an error in it, or runs longer than `SECONDS`.
    """
    end = time.monotonic() + SECONDS
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        connection.execute("PRAGMA temp_store = MEMORY")  # nor does a query that sorts write files
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY)
        connection.set_progress_handler(lambda: time.monotonic() > end, 1000)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, LONGEST_PATTERN)
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        try:
            rows = connection.execute(sql).fetchmany(most + 1)
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            if time.monotonic() > end:
                raise QueryError(f"stopped after {SECONDS:g} seconds: ask for less") from error
            raise QueryError(f"{error}; only one SELECT is allowed") from error
    return rows[:most], len(rows) > most


def sqlite_tool(path: str | Path) -> Callable[[str], str]:
    """A tool `query(sql)` that asks this database. The model is told its tables and their columns.

    Raises:
        InputFileError: for a file that does not exist.
        InputError: for one that is no SQLite database.
    """
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise InputFileError("sqlite", str(path), f"there is no such file in {Path.cwd()}")

    def query(sql: str) -> str:
        rows, is_cut = query_database(file, sql)
        lines = [" | ".join(map(str, row)) for row in rows]
        return "\n".join([*lines, "... there are more rows"] if is_cut else lines or ["no rows"])

    query.__doc__ = f"""Ask the database, which is only read. Its tables: {tables(file)}.

    Args:
        sql: one SELECT statement of SQLite
    """
    query.__dict__["fingerprint"] = f"sqlite {query.__doc__}"
    return query


def tables(path: Path) -> str:
    """The tables and views of a database with their columns, such as "things(name, euros), sales(day, thing)"."""
    sql = "SELECT m.name, (SELECT group_concat(name, ', ') FROM pragma_table_info(m.name)) FROM sqlite_schema AS m "
    sql += "WHERE m.type IN ('table', 'view') AND m.name NOT LIKE 'sqlite_%' ORDER BY m.rowid"
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            rows = connection.execute(sql).fetchall()
    except sqlite3.Error as error:
        raise InputError("sqlite", str(path), f"expected a SQLite database ({error})") from error
    tables = [f"{name}({columns})" for name, columns in rows[:SHOWN_TABLES]]
    return ", ".join([*tables, "and more"] if len(rows) > SHOWN_TABLES else tables or ["none"])
