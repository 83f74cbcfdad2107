"""What a reward function is: its name, its signature and settings, the weights of several, and checks of arguments."""

import functools
import inspect
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from grpo_lab.base.checks import InputError, InputTypeError
from grpo_lab.base.user_code import TRAINER_ARGUMENTS
from grpo_lab.sandbox.python import check_sandbox

# Columns of the dataset that are not passed to reward functions: the trainer's lists replace them, as in TRL.
REPLACED_COLUMNS = ("prompt", "completion", "completion_ids")
MAX_FLOAT32 = (2 - 2**-23) * 2.0**127  # the weights of reward functions are numbers in float32


def reward_names(reward_funcs: Any) -> list[str]:
    """Return a distinct name for each of one or several reward functions.

    As in TRL, the name is the `__name__` of the function, or the name of the class of a callable object. A name that
    occurs again gets a number: `accuracy_reward`, `accuracy_reward_2`. A lambda is called "lambda".
    """
    reward_funcs = reward_func_list(reward_funcs)
    if not reward_funcs or not all(map(callable, reward_funcs)):
        raise InputError("reward_funcs", reward_funcs, "expected at least one reward function, and nothing else")
    names: list[str] = []
    for function in map(innermost_function, reward_funcs):
        name = getattr(function, "__name__", type(function).__name__).strip("<>")
        numbered = (f"{name}_{number}" for number in range(2, len(reward_funcs) + 2))
        names.append(next(candidate for candidate in (name, *numbered) if candidate not in names))
    return names


def innermost_function(function: Callable) -> Callable:
    """Return the function inside any number of nested `functools.partial` objects."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def is_defined_in_package(function: Callable) -> bool:
    """Return True if a function, or the function inside a partial, is defined in this package."""
    return (getattr(innermost_function(function), "__module__", None) or "").startswith("grpo_lab.")


def reward_func_list(reward_funcs: Any) -> list:
    """Return one or several reward functions as a list.

    None, as when only an environment gives rewards, becomes an empty list, and any other value the only entry.
    """
    if reward_funcs is None:
        return []
    is_single = callable(reward_funcs) or not isinstance(reward_funcs, Iterable) or isinstance(reward_funcs, str)
    return [reward_funcs] if is_single else list(reward_funcs)


def signature_of(function: Callable) -> inspect.Signature | None:
    """Return the signature of a function; None for some functions written in C, which have none."""
    try:
        return inspect.signature(function)
    except ValueError:
        return None


def received_keywords(function: Callable, keywords: Iterable[str]) -> list[str]:
    """Return those of these keywords with which a reward function is called.

    An argument of the trainer is passed only if the function accepts it, and every column of the dataset, as in TRL,
    unless it has the name of a setting. Settings are the parameters that `functools.partial` has bound, and those of a
    reward of this package that have a default other than None.
    """
    signature = signature_of(function)
    parameters = signature.parameters if signature else {}
    takes_any_keyword = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    settings = set()
    if is_defined_in_package(function):
        settings = {p.name for p in parameters.values() if p.default is not p.empty and p.default is not None}
    while isinstance(function, functools.partial):
        settings |= set(function.keywords)
        function = function.func
    return [
        keyword
        for keyword in keywords
        if keyword not in settings and (keyword not in TRAINER_ARGUMENTS or keyword in parameters or takes_any_keyword)
    ]


def check_signatures(reward_funcs: Any, columns: Iterable[str]) -> None:
    """Check, before there is a batch, that each reward function can be called with the columns of the dataset.

    Args:
        reward_funcs: One or several reward functions.
        columns: The names of the columns, and of the trainer's arguments that are passed.

    Raises:
        TypeError: if a function cannot take its keyword arguments, or if a column, which is a list, would override a
            default that is a number or a text.
        RunError: if a function runs programs and no sandbox is available.
    """
    passed_columns = [name for name in columns if name not in REPLACED_COLUMNS]
    for function, name in zip(reward_func_list(reward_funcs), reward_names(reward_funcs), strict=True):
        check_sandbox("reward_funcs", function)
        keywords = received_keywords(function, ["prompts", "completions", "completion_ids", *passed_columns])
        if (signature := signature_of(function)) is None:
            continue
        try:
            signature.bind(**dict.fromkeys(keywords))
        except TypeError as error:
            expected = f"expected parameters for {', '.join(keywords)}, or some of them and **kwargs"
            mismatch = f"does not fit the batch: {error}"
            raise InputTypeError(f"reward function {name!r}", function, expected, problem=mismatch) from error
        for column in (keyword for keyword in keywords if keyword not in TRAINER_ARGUMENTS):
            parameter = signature.parameters.get(column)
            if parameter is not None and isinstance(parameter.default, numbers.Number | str):
                expected = "rename one of them, bind the setting with functools.partial, or give it no default"
                conflict = f"has the setting {column}={parameter.default!r}, and the data a column {column!r}"
                raise InputTypeError(f"reward function {name!r}", function, expected, problem=conflict)


def check_weights(reward_weights: Any, names: Sequence[str]) -> list:
    """Raise InputError, which is a ValueError, unless there is one finite weight for each function, or None.

    Args:
        reward_weights: The weights, in a list, an array or a tensor; they have to be finite in float32. None means 1
            for each of the functions.
        names: The names of the functions.

    Returns:
        The weights as a list.
    """
    plain_weights = reward_weights.tolist() if hasattr(reward_weights, "tolist") else reward_weights
    weights = [1.0] * len(names) if plain_weights is None else list(plain_weights)
    are_finite = all(is_real_within(MAX_FLOAT32, weight) for weight in weights)
    if len(weights) != len(names) or not are_finite:
        functions = f"the {len(names)} reward functions ({', '.join(names)})"
        raise InputError("reward_weights", weights, f"expected one finite number for each of {functions}, in float32")
    return weights


def is_real_within(limit: float, value: Any) -> bool:
    """Return whether a value is a real number of at most `limit` in size; NaN is not.

    The value is not converted to a float, since that would overflow for a huge integer.
    """
    return isinstance(value, numbers.Real) and value <= limit and not value < -limit


def expected_texts(name: str, completions: Any, answer: Any) -> list[str | None]:
    """Return the column `answer` as strings, one per completion; None for a completion without an expected answer."""
    check_expected(name, completions, answer)
    return [None if expected is None else str(expected) for expected in answer]


def check_expected(name: str, completions: Any, answer: Any) -> None:
    """Raise an error unless the column `answer` has a str, an int or None for each completion.

    name: The name of the reward, for the message.

    Raises:
        ValueError: if the number of entries is not the number of completions.
        TypeError: if an entry is anything else; the message gives its row. It is a ValueError as well.
    """
    check_column(f"{name}: answer", answer, completions)
    for row, expected in enumerate(answer):
        # A float is refused: 42.0 would be compared as the text "42.0", and a response says "42".
        is_text_or_int = isinstance(expected, str | numbers.Integral) and not isinstance(expected, bool)
        if expected is not None and not is_text_or_int:
            description = f"is {describe_value(expected)}"
            raise InputTypeError(
                f"{name}: answer[{row}]", expected, "expected a str, an int or None", problem=description
            )


def check_number_setting(name: str, value: Any) -> None:
    """Raise TypeError unless the setting of a reward is a number: a column of the same name may have replaced it."""
    if not isinstance(value, numbers.Real):
        expected = "expected a number; a column of the data must have another name than this setting"
        raise InputTypeError(name, value, expected, problem=f"is {describe_value(value)}")


def check_column(name: str, values: Any, completions: Any) -> None:
    """Raise ValueError, with the name of the column, unless it has one entry per completion."""
    is_not_list = isinstance(values, (str, bytes)) or not hasattr(values, "__len__")
    if is_not_list or len(values) != len(completions):
        description = f"is {describe_value(values)}" if is_not_list else f"has {len(values)} entries"
        raise InputError(
            name, values, f"expected one entry for each of {len(completions)} completions", problem=description
        )


def describe_value(value: Any) -> str:
    """Return the type of a value and the first 80 characters of its repr, for messages."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
