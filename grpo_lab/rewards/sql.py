"""The reward for SELECT statements of SQLite: their result is compared with that of an expected statement."""

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from grpo_lab.base.checks import InputError, InputFileError
from grpo_lab.rewards.argument_checks import check_column
from grpo_lab.rewards.text import completion_text, last_code_block
from grpo_lab.sandbox.database import QueryError, query_database

MAX_COMPARED_ROWS = 10_000  # most rows that a result may have
_ORDER_BY = re.compile(r"\border\s+by\b", re.IGNORECASE)


class ExpectedResult(NamedTuple):
    """The result that a submitted statement has to have."""

    rows: list[tuple]
    is_ordered: bool  # whether the order of the rows counts


def sql_reward(completions: Any, sql: Any, database: Any, **kwargs: Any) -> list[float | None]:
    """Return 1.0 if the SELECT of a completion has the same result as the expected statement, else 0.0.

    The rows of the two results may be in different orders, unless the expected statement has ORDER BY. The names of the
    result columns may differ, but not their order.

    Args:
        completions: Strings or lists of chat messages. A completion without a statement earns 0.0.
        sql: The expected statement of each completion. If an entry is None, the reward does not apply, and None is
            returned.
        database: The path of the SQLite file that both statements query; it is only read.
        kwargs: Other columns, unused.
    """
    for name, column in (("sql", sql), ("database", database)):
        check_column(f"sql: {name}", column, completions)
    cached_expected_result = cache(expected_result)  # the completions of a group have the same expected statement
    rewards: list[float | None] = []
    for completion, statement, path in zip(completions, sql, database, strict=True):
        if statement is None:
            rewards.append(None)
        else:
            submitted = last_code_block(completion_text(completion), ("sql", "sqlite"))
            is_right = submitted is not None and _has_result(submitted, path, cached_expected_result(path, statement))
            rewards.append(float(is_right))
    return rewards


def expected_result(database: str, statement: str) -> ExpectedResult:
    """Return the result of the expected statement.

    Raises:
        InputError: if there is no such database, or the statement has no result in it, or a result of too many rows.
    """
    if not isinstance(database, str) or not Path(database).is_file():
        raise InputFileError("database", database, f"expected a SQLite file; there is none in {Path.cwd()}")
    try:
        result = query_database(Path(database), statement, MAX_COMPARED_ROWS)
    except (QueryError, TypeError) as error:
        raise InputError("sql", statement, f"expected a SELECT that the database answers: {error}") from error
    if result.is_cut:
        raise InputError("sql", statement, f"expected a result of at most {MAX_COMPARED_ROWS:,} rows")
    return ExpectedResult(_comparable(result.rows), is_ordered=_ORDER_BY.search(statement) is not None)


def _has_result(statement: str, database: str, expected: ExpectedResult) -> bool:
    """Return True if a statement has the expected result; False if it fails or returns too many rows."""
    try:
        result = query_database(Path(database), statement, MAX_COMPARED_ROWS)
    except QueryError:
        return False
    rows = _comparable(result.rows)
    has_same_rows = rows == expected.rows if expected.is_ordered else Counter(rows) == Counter(expected.rows)
    return has_same_rows and not result.is_cut


def _comparable(rows: list[tuple]) -> list[tuple]:
    """Round floats to 9 digits, since the last digits of a sum depend on the order of its terms."""
    return [tuple(float(f"{value:.9g}") if isinstance(value, float) else value for value in row) for row in rows]
