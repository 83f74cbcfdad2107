"""A SQLite database that a model can query but not change.

It has four independent protections: the file is opened read-only; an authorizer permits only actions that read; a query
has a time limit; and the number of rows and the length of a value are limited. The memory of a running query is not.
"""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from grpo_lab.base.checks import InputError, InputFileError

MAX_SHOWN_ROWS = 20  # number of rows of a result that a model gets to read
MAX_SECONDS = 2.0  # time limit of a query
MAX_BYTES = 100_000  # length of a value, and of a statement
MAX_SHOWN_TABLES = 20  # number of tables in the docstring that the model reads
# Bytes of a LIKE pattern: matching a longer one could take minutes, and cannot be interrupted.
MAX_PATTERN_LENGTH = 100
READ_ACTIONS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}


class QueryError(ValueError):
    """A query was refused, failed or took too long; the message is written for the model that wrote the query."""


class QueryResult(NamedTuple):
    """The result of a query, up to a maximum number of rows."""

    rows: list[tuple]
    is_cut: bool  # whether there are more rows


def query_database(path: Path, sql: str, max_rows: int = MAX_SHOWN_ROWS) -> QueryResult:
    """Run one SELECT statement on a database.

    Args:
        path: The file of the database.
        sql: The statement.
        max_rows: The maximum number of rows to return.

    Raises:
        QueryError: if the statement does more than read, contains an error, or runs longer than `MAX_SECONDS`.
    """
    deadline = time.monotonic() + MAX_SECONDS
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        connection.execute("PRAGMA temp_store = MEMORY")  # otherwise sorting would write temporary files
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.set_authorizer(
            lambda action, *_: sqlite3.SQLITE_OK if action in READ_ACTIONS else sqlite3.SQLITE_DENY
        )
        connection.set_progress_handler(lambda: time.monotonic() > deadline, 1000)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, MAX_PATTERN_LENGTH)
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        try:
            rows = connection.execute(sql).fetchmany(max_rows + 1)
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            if time.monotonic() > deadline:
                raise QueryError(f"stopped after {MAX_SECONDS:g} seconds: ask for less") from error
            raise QueryError(f"{error}; only one SELECT is allowed") from error
    return QueryResult(rows[:max_rows], is_cut=len(rows) > max_rows)


def sqlite_tool(path: str | Path) -> Callable[[str], str]:
    """Make a tool `query(sql)` for a database; its docstring lists the tables and their columns for the model.

    Raises:
        InputFileError: if the file does not exist.
        InputError: if the file is not a SQLite database.
    """
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise InputFileError("sqlite", str(path), f"there is no such file in {Path.cwd()}")

    def query(sql: str) -> str:
        result = query_database(file, sql)
        lines = [" | ".join(map(str, row)) for row in result.rows]
        if result.is_cut:
            lines.append("... there are more rows")
        return "\n".join(lines or ["no rows"])

    query.__doc__ = f"""Ask the database, which is only read. Its tables: {describe_tables(file)}.

    Args:
        sql: one SELECT statement of SQLite
    """
    query.__dict__["fingerprint"] = f"sqlite {query.__doc__}"
    return query


def describe_tables(path: Path) -> str:
    """Return the tables and views of a database with columns, such as "things(name, euros), sales(day, thing)"."""
    sql = "SELECT m.name, (SELECT group_concat(name, ', ') FROM pragma_table_info(m.name)) FROM sqlite_schema AS m "
    sql += "WHERE m.type IN ('table', 'view') AND m.name NOT LIKE 'sqlite_%' ORDER BY m.rowid"
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            rows = connection.execute(sql).fetchall()
    except sqlite3.Error as error:
        raise InputError("sqlite", str(path), f"expected a SQLite database ({error})") from error
    descriptions = [f"{name}({columns})" for name, columns in rows[:MAX_SHOWN_TABLES]]
    if len(rows) > MAX_SHOWN_TABLES:
        descriptions.append("and more")
    return ", ".join(descriptions or ["none"])
