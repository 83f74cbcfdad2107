"""Rewards for programs: Python, which runs in the sandbox (`grpo_lab.sandbox`), and SELECT statements of SQLite.

The program is the last closed code block of a completion, between lines of three backquotes. A SELECT statement is
right if its result is that of an expected statement. For Python, the column `tests` has one of the forms that datasets
of programs use:

- statements such as "assert double(2) == 4", as one text or a list of texts (MBPP);
- pairs of input and expected output, as [{"input": "2", "output": "4"}, ...] or as {"inputs": ["2", ...], "outputs":
  ["4", ...]} (APPS, TACO, verl);
- either of the two as JSON text.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from grpo_lab.base.checks import InputError, InputFileError
from grpo_lab.rewards.functions import check_column, describe_value
from grpo_lab.rewards.text import completion_text, last_code_block
from grpo_lab.sandbox.database import QueryError, query_database
from grpo_lab.sandbox.python import MAX_CPU_SECONDS, execute, needs_sandbox

_EXPECTED_FORMS = "expected statements, or pairs of input and output, as docs/own-task.md shows them"
MAX_COMPARED_ROWS = 10_000  # most rows that a result may have
_ORDER_BY = re.compile(r"\border\s+by\b", re.IGNORECASE)
# What may contain brackets and words that are no part of the statement: names and strings in quotes, and comments.
_SQL_QUOTE_OR_COMMENT = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?(?:\*/|\Z)""", re.DOTALL)
_INNERMOST_BRACKETS = re.compile(r"\([^()]*\)")


class ProgramTest(NamedTuple):
    """One test: a statement that runs after the program, or an input and the output that the program has to print."""

    statement: str | None
    stdin: str = ""
    stdout: str = ""


@needs_sandbox
def code_reward(completions: Any, tests: Any, seconds: float = MAX_CPU_SECONDS, **kwargs: Any) -> list[float | None]:
    """Return 1.0 for each completion whose program passes all tests, else 0.0; None if a row has no tests.

    Args:
        completions: Strings or lists of chat messages. A completion without a program earns 0.0.
        tests: The tests of each completion, in one of the forms above, or None.
        seconds: The CPU seconds that the program may take for each test.
        kwargs: Other columns, unused.
    """
    return _score_programs("code: tests", completions, tests, seconds, all)


@needs_sandbox
def pass_rate_reward(
    completions: Any, tests: Any, seconds: float = MAX_CPU_SECONDS, **kwargs: Any
) -> list[float | None]:
    """Return the fraction of the tests that the program of each completion passes; None if a row has no tests.

    Arguments are the same as for `code_reward`. A completion without a program earns 0.0.
    """
    return _score_programs("pass_rate: tests", completions, tests, seconds, fmean)


def read_tests(tests: Any) -> list[ProgramTest]:
    """Return the tests in an entry of the column `tests`.

    Raises:
        InputError: if the entry has none of the forms above.
    """
    value = _parse_if_json(tests)
    if isinstance(value, str) and value.strip():
        return [ProgramTest(value)]
    if isinstance(value, dict):
        value = _pairs_of_lists(value)
    if not isinstance(value, list | tuple) or not value:
        raise InputError("tests", tests, _EXPECTED_FORMS, problem=f"is {describe_value(tests)}")
    return [_program_test(test) for test in value]


def _score_programs(
    column_name: str, completions: Any, tests: Any, seconds: float, combine: Callable[[Iterable[bool]], float]
) -> list[float | None]:
    """Return the reward of each completion's program; as many programs run at a time as there are CPUs.

    Args:
        column_name: The name of the column `tests` in errors.
        completions: Strings or lists of chat messages.
        tests: The column `tests`.
        seconds: The CPU seconds that the program may take for each test.
        combine: A function that computes the reward of a program from whether it passes each test. The next test runs
            only if the function asks for its result: with `all`, none runs after the first that fails.
    """
    check_column(column_name, tests, completions)
    program_tests = [None if entry is None else read_tests(entry) for entry in tests]
    programs = [last_code_block(completion_text(completion), ("python", "py", "python3")) for completion in completions]

    def reward_of(program: str | None, row_tests: list[ProgramTest] | None) -> float | None:
        if row_tests is None:
            return None
        return 0.0 if program is None else float(combine(_run_tests(program, row_tests, seconds)))

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(reward_of, programs, program_tests))


def _run_tests(program: str, tests: list[ProgramTest], seconds: float) -> Iterable[bool]:
    """Run a program once for each test, and yield whether it passes that test."""
    for test in tests:
        execution = execute(program, test.stdin, test.statement, seconds)
        yield execution.succeeded and (test.statement is not None or _lines(execution.output) == _lines(test.stdout))


def _lines(text: str) -> list[str]:
    """Return the lines of an output without spaces at their ends and without empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _parse_if_json(tests: Any) -> Any:
    """Return the value of a JSON text; any other value is returned unchanged."""
    if isinstance(tests, str) and tests.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(tests)
        except ValueError:  # not JSON: a statement may also begin with a bracket
            return tests
    return tests


def _pairs_of_lists(tests: dict) -> list[dict]:
    """Return the pairs of input and output from a dict with a list of inputs and a list of outputs."""
    inputs, outputs = tests.get("inputs"), tests.get("outputs")
    if tests.get("fn_name") is not None:
        raise InputError("tests", tests, "write calls of a function as assert statements", problem="has an fn_name")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise InputError("tests", tests, _EXPECTED_FORMS, problem=f"is {describe_value(tests)}")
    return [{"input": stdin, "output": stdout} for stdin, stdout in zip(inputs, outputs, strict=True)]


def _program_test(test: Any) -> ProgramTest:
    if isinstance(test, str) and test.strip():
        return ProgramTest(test)
    if isinstance(test, dict) and test.get("type") in (None, "stdin_stdout"):
        stdin, stdout = test.get("input"), test.get("output")
        if isinstance(stdin, str) and isinstance(stdout, str):
            return ProgramTest(None, stdin, stdout)
    raise InputError("tests", test, _EXPECTED_FORMS, problem=f"has {describe_value(test)}")


def sql_reward(completions: Any, sql: Any, database: Any, **kwargs: Any) -> list[float | None]:
    """Return 1.0 if the SELECT of a completion has the same result as the expected statement, else 0.0.

    The rows of the two results may be in different orders, unless the expected statement has an ORDER BY outside all
    brackets: one in a sub-select or in OVER (...) does not order the result. The names of the result columns may
    differ, but not their order.

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
            expected_rows, is_ordered = cached_expected_result(path, statement), orders_result(statement)
            is_right = submitted is not None and _has_result(submitted, path, expected_rows, is_ordered)
            rewards.append(float(is_right))
    return rewards


def orders_result(statement: str) -> bool:
    """Return True if a statement has an ORDER BY outside all brackets."""
    statement, has_brackets = _SQL_QUOTE_OR_COMMENT.sub(" ", statement), 1
    while has_brackets:
        statement, has_brackets = _INNERMOST_BRACKETS.subn(" ", statement)
    return bool(_ORDER_BY.search(statement))


def expected_result(database: str, statement: str) -> list[tuple]:
    """Return the rows of the result of the expected statement, in the form in which they are compared.

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
    return _comparable(result.rows)


def _has_result(statement: str, database: str, expected_rows: list[tuple], is_ordered: bool) -> bool:
    """Return True if a statement has the expected rows; False if it fails or returns too many rows.

    is_ordered: Whether the order of the rows counts.
    """
    try:
        result = query_database(Path(database), statement, MAX_COMPARED_ROWS)
    except QueryError:
        return False
    rows = _comparable(result.rows)
    has_same_rows = rows == expected_rows if is_ordered else Counter(rows) == Counter(expected_rows)
    return has_same_rows and not result.is_cut


def _comparable(rows: list[tuple]) -> list[tuple]:
    """Round floats to 9 digits, since the last digits of a sum depend on the order of its terms."""
    return [tuple(float(f"{value:.9g}") if isinstance(value, float) else value for value in row) for row in rows]
