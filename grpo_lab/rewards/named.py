"""Reward functions by name, for the commands: the rewards of this package, and your own as FILE:function.

Before a run begins, `check_reward_columns` checks that its rewards can be computed from the rows of its data.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_lab.base.checks import InputError, combine_errors
from grpo_lab.base.user_code import TRAINER_ARGUMENTS, check_function, import_user_object
from grpo_lab.rewards.answers import last_number_reward, number_reward
from grpo_lab.rewards.functions import expected_texts, signature_of
from grpo_lab.rewards.programs import code_reward, expected_result, pass_rate_reward, read_tests, sql_reward
from grpo_lab.rewards.rules import accuracy_reward, contains_reward, format_reward, graded_reward, think_rate
from grpo_lab.rewards.verifiers import gym_reward, math_reward
from grpo_lab.sandbox.python import check_sandbox
from grpo_lab.tasks import Row


def _check_tests(row: Row) -> None:
    """Raise InputError if the tests of a row cannot be read."""
    if row["tests"] is not None:
        read_tests(row["tests"])


def _check_sql(row: Row) -> None:
    """Raise InputError if the SQL statement of a row has no result in its database."""
    if row["sql"] is not None:
        expected_result(row["database"], row["sql"])


@dataclass(frozen=True)
class NamedReward:
    """An entry of `NAMED_REWARDS`: a reward function of this package, and what it expects of completions and rows.

    Attributes:
        function: The reward function.
        reads_tags: Whether the function looks for think or answer tags in a completion.
        compares_numbers: Whether the column `answer` has to be a number.
        check_row: A function that raises InputError if the columns of a row cannot be read; None for no such check.
    """

    function: Callable
    reads_tags: bool = False
    compares_numbers: bool = False
    check_row: Callable[[Row], None] | None = None


NAMED_REWARDS = {
    "accuracy": NamedReward(accuracy_reward, reads_tags=True),
    "math": NamedReward(math_reward, reads_tags=True),
    "number": NamedReward(number_reward, reads_tags=True, compares_numbers=True),
    "last": NamedReward(last_number_reward, compares_numbers=True),
    "format": NamedReward(format_reward, reads_tags=True),
    "graded": NamedReward(graded_reward, reads_tags=True),
    "contains": NamedReward(contains_reward),
    "gym": NamedReward(gym_reward, reads_tags=True),
    "code": NamedReward(code_reward, check_row=_check_tests),
    "pass_rate": NamedReward(pass_rate_reward, check_row=_check_tests),
    "sql": NamedReward(sql_reward, check_row=_check_sql),
    "think": NamedReward(think_rate, reads_tags=True),
}
REWARD_FUNCTIONS: dict[str, Callable] = {name: entry.function for name, entry in NAMED_REWARDS.items()}


def short_name(name: str) -> str:
    """Return the name in `REWARD_FUNCTIONS` for a function's name: "accuracy" for "accuracy_reward".

    Any other name is returned unchanged.
    """
    short_names = {function.__name__: short for short, function in REWARD_FUNCTIONS.items()}
    return short_names.get(name, name)


def find_rewards(names: Iterable[str]) -> list[Callable]:
    """Return the reward functions with these names.

    A name is a key of `REWARD_FUNCTIONS`, the name of such a function, "FILE:function" or "module:function". A module
    is looked for in the current folder first, then among the installed modules.

    Raises:
        InputError: if a name is unknown, occurs twice, or cannot be imported.
    """
    short_names = [short_name(name) for name in names]
    if duplicate := next((name for name in short_names if short_names.count(name) > 1), None):
        expected = "expected each once: reward_weights says how much it counts"
        raise InputError("reward_funcs", duplicate, expected, problem=f"has {duplicate!r} twice")
    if unknown := next((name for name in short_names if name not in REWARD_FUNCTIONS and ":" not in name), None):
        expected = f"expected {', '.join(REWARD_FUNCTIONS)}, or FILE:function of your own"
        raise InputError("reward_funcs", unknown, expected, problem=f"has {unknown!r}")
    functions = []
    for name in short_names:
        function = REWARD_FUNCTIONS.get(name) or import_user_object("reward_funcs", name, "my_rewards:brief")
        check_function("reward_funcs", name, function)
        functions.append(function)
    return functions


def any_reads_tags(names: Iterable[str]) -> bool:
    """Return True if one of these rewards looks for think or answer tags.

    For a reward of your own this is not known, and it counts as one that does not.
    """
    entries = (NAMED_REWARDS.get(short_name(name)) for name in names)
    return any(entry is not None and entry.reads_tags for entry in entries)


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
    errors: list[InputError] = []
    for name, columns in required_columns.items():
        if missing := sorted(columns - available):
            need = f"has {name!r}, which needs the column {' and '.join(map(repr, missing))}"
            other_columns = ", ".join(sorted(rows[0].keys() - {"prompt"}))
            explanation = f"{locations[0]} lacks it, and has {other_columns or 'a prompt alone'}"
            if is_user_data and "answer" in missing:
                explanation += "; another column with the answers is named as --answer_column"
            errors.append(InputError("reward_funcs", name, explanation, problem=need))
    if not errors:
        errors += _row_check_errors(required_columns, rows, locations)
    errors += _answer_errors(required_columns, rows, locations)
    if errors:
        raise combine_errors(errors)


def _row_check_errors(names: Collection[str], rows: Sequence[Row], locations: Sequence[str]) -> list[InputError]:
    """Return the first error of each row whose tests or SQL statement cannot be read."""
    # Two rewards may share a check: each check runs once, in the order of NAMED_REWARDS.
    entries = (entry for name, entry in NAMED_REWARDS.items() if name in names)
    checks = dict.fromkeys(entry.check_row for entry in entries if entry.check_row is not None)
    errors: list[InputError] = []
    if not checks:  # then there is no need to make the rows, of which a large file may have many
        return errors
    for location, row in zip(locations, rows, strict=True):
        try:
            for check in checks:
                check(row)
        except InputError as error:
            argument = f"{location}: {error.argument}"
            errors.append(InputError(argument, error.value, error.expected, problem=error.problem))
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
        compares_numbers = NAMED_REWARDS[name].compares_numbers
        try:
            expected_texts(name, [""], [answer])
            if compares_numbers:
                REWARD_FUNCTIONS[name]([""], answer=[answer])
        except InputError as error:
            kind = "a number" if compares_numbers else "a text or a whole number"
            raise InputError(f"{location}: answer", answer, f"expected {kind} for {name!r}") from error


def _required_parameters(function: Callable) -> set[str]:
    """Return the names of the parameters that have no default and so must be passed."""
    signature = signature_of(function)
    parameters = signature.parameters.values() if signature else ()
    return {p.name for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
