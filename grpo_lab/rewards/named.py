"""Reward functions by name, for the commands: the rewards of this package, and your own as FILE:function."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from grpo_lab.base.checks import InputError
from grpo_lab.base.user_code import check_function, import_user_object
from grpo_lab.rewards.answers import last_number_reward, number_reward
from grpo_lab.rewards.gym import gym_reward
from grpo_lab.rewards.mathematics import math_reward
from grpo_lab.rewards.programs import code_reward, pass_rate_reward, read_tests
from grpo_lab.rewards.rules import accuracy_reward, contains_reward, format_reward, graded_reward, think_rate
from grpo_lab.rewards.sql import expected_result, sql_reward
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
    return [REWARD_FUNCTIONS[name] if name in REWARD_FUNCTIONS else _user_reward(name) for name in short_names]


def _user_reward(name: str) -> Callable:
    function = import_user_object("reward_funcs", name, "my_rewards:brief")
    check_function("reward_funcs", name, function)
    return function


def any_reads_tags(names: Iterable[str]) -> bool:
    """Return True if one of these rewards looks for think or answer tags.

    For a reward of your own this is not known, and it counts as one that does not.
    """
    entries = (NAMED_REWARDS.get(short_name(name)) for name in names)
    return any(entry is not None and entry.reads_tags for entry in entries)
