"""Rewards for Python programs, which run in the sandbox (`grpo_lab.sandbox`).

The program is the last closed code block of a completion, between lines of three backquotes. The column `tests` has one
of the forms that datasets of programs use:

- statements such as "assert double(2) == 4", as one text or a list of texts (MBPP);
- pairs of input and expected output, as [{"input": "2", "output": "4"}, ...] or as {"inputs": ["2", ...], "outputs":
  ["4", ...]} (APPS, TACO, verl);
- either of the two as JSON text.
"""

import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from grpo_lab.base.checks import InputError
from grpo_lab.rewards.argument_checks import check_column, describe_value
from grpo_lab.rewards.text import completion_text, last_code_block
from grpo_lab.sandbox.python import MAX_CPU_SECONDS, execute, needs_sandbox

_EXPECTED_FORMS = "expected statements, or pairs of input and output, as docs/own-task.md shows them"


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

    def all_pass(program: str, row_tests: list[ProgramTest]) -> float:
        return float(all(_run_tests(program, row_tests, seconds)))

    return _score_programs("code: tests", completions, tests, all_pass)


@needs_sandbox
def pass_rate_reward(
    completions: Any, tests: Any, seconds: float = MAX_CPU_SECONDS, **kwargs: Any
) -> list[float | None]:
    """Return the fraction of the tests that the program of each completion passes; None if a row has no tests.

    Arguments are the same as for `code_reward`. A completion without a program earns 0.0.
    """

    def share_that_pass(program: str, row_tests: list[ProgramTest]) -> float:
        return sum(_run_tests(program, row_tests, seconds)) / len(row_tests)

    return _score_programs("pass_rate: tests", completions, tests, share_that_pass)


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
    column_name: str, completions: Any, tests: Any, score: Callable[[str, list[ProgramTest]], float]
) -> list[float | None]:
    """Return the reward of each completion's program; as many programs run at a time as there are CPUs.

    Args:
        column_name: The name of the column `tests` in errors.
        completions: Strings or lists of chat messages.
        tests: The column `tests`.
        score: A function that runs the tests of a program and returns its reward.
    """
    check_column(column_name, tests, completions)
    program_tests = [None if entry is None else read_tests(entry) for entry in tests]
    programs = [last_code_block(completion_text(completion), ("python", "py", "python3")) for completion in completions]

    def reward_of(program: str | None, row_tests: list[ProgramTest] | None) -> float | None:
        if row_tests is None:
            return None
        return 0.0 if program is None else score(program, row_tests)

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
