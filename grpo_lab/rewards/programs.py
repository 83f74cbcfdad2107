"""Rewards for a program, which runs behind the walls of `grpo_lab.sandbox`, and for a SELECT statement of SQLite.

What is rewarded is the last closed block of a completion, between lines of three backquotes. The column `tests` has one
of the forms that data sets of programs have: statements such as "assert double(2) == 4", a text or a list of texts
(MBPP); pairs of what the program reads and prints, as [{"input": "2", "output": "4"}, ...] or as {"inputs": ["2", ...],
"outputs": ["4", ...]} (APPS, TACO, verl); or either as a text of JSON.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from grpo_lab.base.checks import InputError, InputFileError
from grpo_lab.rewards.text import check_column, completion_text, shortened
from grpo_lab.sandbox.database import QueryError, query_database
from grpo_lab.sandbox.python import SECONDS, execute, needs_walls

MOST_ROWS = 10_000  # of the result of a query that a reward compares
_BLOCK = re.compile(r"^[ \t]*```[ \t]*(\w*)[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
_FORMS = "expected statements, or pairs of input and output, as docs/own-task.md shows them"


class Case(NamedTuple):
    """One test: a statement that is run after the program, or what the program reads and has to print."""

    statement: str | None
    stdin: str = ""
    stdout: str = ""


@needs_walls
def code_reward(completions: Any, tests: Any, seconds: float = SECONDS, **kwargs: Any) -> list[float | None]:
    """1.0 if the program in a completion passes all of its tests, else 0.0, as without a program; None without tests.

    seconds: of computing, for each test.
    """
    return _of_each("code", completions, tests, lambda code, cases: float(all(_passes(code, cases, seconds))))


@needs_walls
def pass_rate_reward(completions: Any, tests: Any, seconds: float = SECONDS, **kwargs: Any) -> list[float | None]:
    """The share of its tests that the program in a completion passes, 0.0 without a program; None without tests.

    seconds: of computing, for each test.
    """
    return _of_each(
        "pass_rate", completions, tests, lambda code, cases: sum(_passes(code, cases, seconds)) / len(cases)
    )


def sql_reward(completions: Any, sql: Any, database: Any, **kwargs: Any) -> list[float | None]:
    """1.0 if the SELECT in a completion has the result of the one in the column `sql`, else 0.0; None without that.

    Both are asked of the SQLite file in the column `database`, which is only read. Rows may come in any order, unless
    the expected statement says ORDER BY; names of columns do not matter, their order does.
    """
    for name, column in (("sql", sql), ("database", database)):
        check_column(f"sql: {name}", column, completions)
    expected = cache(expected_result)
    return [
        None if statement is None else _has_result(completion, database[row], *expected(database[row], statement))
        for row, (completion, statement) in enumerate(zip(completions, sql, strict=True))
    ]


def last_block(completion: Any, languages: Iterable[str]) -> str | None:
    """The text of the last closed block in one of these languages, or in none that is named; None if there is none."""
    blocks = _BLOCK.findall(completion_text(completion).replace("\r\n", "\n"))
    return next((text for name, text in reversed(blocks) if name.lower() in ("", *languages)), None)


def read_tests(tests: Any) -> list[Case]:
    """The tests in an entry of the column `tests`; InputError for what is none of its forms."""
    value = _parsed(tests)
    if isinstance(value, str) and value.strip():
        return [Case(value)]
    if isinstance(value, dict):
        value = _pairs(value)
    if not isinstance(value, list | tuple) or not value:
        raise InputError("tests", tests, _FORMS, found=f"is {shortened(tests)}")
    return [_case(test) for test in value]


def expected_result(database: str, statement: str) -> tuple[list[tuple], bool]:
    """The rows of a statement that is right, and whether their order counts; InputError for one that has none."""
    if not isinstance(database, str) or not Path(database).is_file():
        raise InputFileError("database", database, f"expected a SQLite file; there is none in {Path.cwd()}")
    try:
        rows, is_cut = query_database(Path(database), statement, MOST_ROWS)
    except (QueryError, TypeError) as error:
        raise InputError("sql", statement, f"expected a SELECT that the database answers: {error}") from error
    if is_cut:
        raise InputError("sql", statement, f"expected a result of at most {MOST_ROWS:,} rows")
    return _comparable(rows), re.search(r"\border\s+by\b", statement, re.IGNORECASE) is not None


def _of_each(name: str, completions: Any, tests: Any, reward: Callable[[str, list[Case]], float]) -> list[float | None]:
    """The reward of each completion's program, as many at a time as there are processors."""
    check_column(f"{name}: tests", tests, completions)
    cases = [None if entry is None else read_tests(entry) for entry in tests]
    programs = [last_block(completion, ("python", "py", "python3")) for completion in completions]

    def scored(program: str | None, row_cases: list[Case] | None) -> float | None:
        if row_cases is None:
            return None
        return 0.0 if program is None else reward(program, row_cases)

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(scored, programs, cases))


def _passes(code: str, cases: list[Case], seconds: float) -> Iterable[bool]:
    """Run a program on each test anew; True for those that it passes, one by one."""
    for case in cases:
        execution = execute(code, case.stdin, case.statement, seconds)
        yield execution.succeeded and (case.statement is not None or _lines(execution.output) == _lines(case.stdout))


def _lines(text: str) -> list[str]:
    """The lines of an output as they are compared, without spaces at their ends and empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _parsed(tests: Any) -> Any:
    if isinstance(tests, str) and tests.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(tests)
        except ValueError:  # then it is a statement that begins so
            return tests
    return tests


def _pairs(tests: dict) -> list[dict]:
    inputs, outputs = tests.get("inputs"), tests.get("outputs")
    if tests.get("fn_name") is not None:
        raise InputError("tests", tests, "write calls of a function as assert statements", found="has an fn_name")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise InputError("tests", tests, _FORMS, found=f"is {shortened(tests)}")
    return [{"input": read, "output": printed} for read, printed in zip(inputs, outputs, strict=True)]


def _case(test: Any) -> Case:
    if isinstance(test, str) and test.strip():
        return Case(test)
    if isinstance(test, dict) and test.get("type") in (None, "stdin_stdout"):
        stdin, stdout = test.get("input"), test.get("output")
        if isinstance(stdin, str) and isinstance(stdout, str):
            return Case(None, stdin, stdout)
    raise InputError("tests", test, _FORMS, found=f"has {shortened(test)}")


def _has_result(completion: Any, database: str, expected: list[tuple], is_ordered: bool) -> float:
    statement = last_block(completion, ("sql", "sqlite"))
    if statement is None:
        return 0.0
    try:
        rows, is_cut = query_database(Path(database), statement, MOST_ROWS)
    except QueryError:
        return 0.0
    rows = _comparable(rows)
    return float(not is_cut and (rows == expected if is_ordered else Counter(rows) == Counter(expected)))


def _comparable(rows: list[tuple]) -> list[tuple]:
    """Sums in another order differ in their last digits, which do not count."""
    return [tuple(float(f"{value:.9g}") if isinstance(value, float) else value for value in row) for row in rows]
