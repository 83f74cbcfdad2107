"""Check, before a run begins, that its rewards can be computed from the rows of its data."""

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

from grpo_lab.base.checks import InputError, combine_errors
from grpo_lab.base.user_code import TRAINER_ARGUMENTS
from grpo_lab.rewards.argument_checks import expected_texts
from grpo_lab.rewards.named import NAMED_REWARDS, REWARD_FUNCTIONS, find_rewards, short_name
from grpo_lab.sandbox.python import check_sandbox
from grpo_lab.tasks import Row


def check_reward_columns(names: list[str], rows: Sequence[Row], locations: Sequence[str] | None = None) -> None:
    """Raise InputError, which is a ValueError, if the rewards cannot be computed from the columns of the rows.

    One error reports all columns that are missing, all tests and SQL statements that cannot be read, and all entries of
    `answer` that are None or empty, or not a number although a reward compares numbers.

    Args:
        names: The names of the rewards, as in `find_rewards`.
        rows: The rows of the dataset.
        locations: The file and line of each row, for the message. None for rows that do not come from the user's file:
            then the message gives the index of the row.

    Raises:
        RunError: if a reward runs programs and no sandbox is available. This is checked first.
    """
    is_user_data = locations is not None
    locations = locations or [f"row {index}" for index in range(len(rows))]
    functions = find_rewards(names)
    for function in functions:
        check_sandbox("reward_funcs", function)
    required_columns = {
        short_name(name): _required_parameters(function) for name, function in zip(names, functions, strict=True)
    }
    # Counted as available: whether a run has environments is checked later, when the environment is loaded.
    available = {"prompts", "completions", "completion_ids", "environments", *TRAINER_ARGUMENTS, *rows[0]}
    errors = _missing_column_errors(required_columns, available, rows[0], locations[0], is_user_data)
    if not errors:
        errors += _row_check_errors(required_columns, rows, locations)
    errors += _answer_errors(required_columns, rows, locations)
    if errors:
        raise combine_errors(errors)


def _missing_column_errors(
    required_columns: dict[str, set[str]], available: set[str], first_row: Row, location: str, is_user_data: bool
) -> list[InputError]:
    """Return an error for each reward that needs a column which the first row does not have."""
    errors = []
    for name, columns in required_columns.items():
        if missing := sorted(columns - available):
            need = f"has {name!r}, which needs the column {' and '.join(map(repr, missing))}"
            other_columns = ", ".join(sorted(first_row.keys() - {"prompt"}))
            explanation = f"{location} lacks it, and has {other_columns or 'a prompt alone'}"
            if is_user_data and "answer" in missing:
                explanation += "; another column with the answers is named as --answer_column"
            errors.append(InputError("reward_funcs", name, explanation, problem=need))
    return errors


def _row_check_errors(names: Collection[str], rows: Sequence[Row], locations: Sequence[str]) -> list[InputError]:
    """Return the first error of each row whose tests or SQL statement cannot be read."""
    # Two rewards may share a check: each check runs once, in the order of NAMED_REWARDS.
    entries = (entry for name, entry in NAMED_REWARDS.items() if name in names)
    checks = dict.fromkeys(entry.check_row for entry in entries if entry.check_row is not None)
    errors: list[InputError] = []
    if not checks:
        return errors
    for location, row in zip(locations, rows, strict=True):
        try:
            for check in checks:
                check(row)
        except InputError as error:
            problem = error.details.partition("; ")[0].strip()
            errors.append(InputError(f"{location}: {error.argument}", error.value, error.expected, problem=problem))
    return errors


def _answer_errors(
    required_columns: dict[str, set[str]], rows: Sequence[Row], locations: Sequence[str]
) -> list[InputError]:
    """Return an error for each expected answer that a reward of this package cannot compare with a completion."""
    comparing_names = [
        name for name, columns in required_columns.items() if name in REWARD_FUNCTIONS and "answer" in columns
    ]
    has_reward_without_answer = any("answer" not in columns for columns in required_columns.values())
    errors: list[InputError] = []
    # A check costs as much as a reward, and 100,000 rows may have few distinct answers.
    checked_answers: set[str] = set()
    for index, row in enumerate(rows):
        if "answer" in row and (answer := repr(row["answer"])) not in checked_answers:
            try:
                check_answer(row["answer"], locations[index], comparing_names, has_reward_without_answer)
                checked_answers.add(answer)
            except InputError as error:
                errors.append(error)
    return errors


def check_answer(answer: Any, location: str, names: list[str], has_reward_without_answer: bool) -> None:
    """Raise InputError if one of the named rewards cannot compare this expected answer with a completion."""
    has_no_reward = answer is None and not has_reward_without_answer
    is_never_right = bool(names) and str(answer).strip() == ""
    if has_no_reward or is_never_right:
        raise InputError(f"{location}: answer", answer, "expected a text, since nothing could be right")
    for name in names:
        try:
            expected_texts(name, [""], [answer])
            if NAMED_REWARDS[name].compares_numbers:
                REWARD_FUNCTIONS[name]([""], answer=[answer])
        except InputError as error:
            kind = "a number" if NAMED_REWARDS[name].compares_numbers else "a text or a whole number"
            raise InputError(f"{location}: answer", answer, f"expected {kind} for {name!r}") from error


def _required_parameters(function: Callable) -> set[str]:
    """Return the names of the parameters that have no default and so must be passed."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # no signature is available, for example for a function written in C
        return set()
    return {p.name for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
