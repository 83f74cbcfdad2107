"""What a reward function is: its name, its signature and settings, and the weights of several functions."""

import functools
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from grpo_lab.base.checks import InputError, InputTypeError
from grpo_lab.base.user_code import TRAINER_ARGUMENTS
from grpo_lab.sandbox.python import check_sandbox

# Columns of the dataset that are not passed to reward functions: the trainer's lists replace them, as in TRL.
REPLACED_COLUMNS = ("prompt", "completion", "completion_ids")


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
    return _partials_and_function(function)[-1]


def _partials_and_function(function: Callable) -> list[Callable]:
    """Return the nested `functools.partial` objects, the outermost first, and then the function inside them."""
    layers = [function]
    while isinstance(layers[-1], functools.partial):
        layers.append(layers[-1].func)
    return layers


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


def check_signatures(reward_funcs: Any, columns: Iterable[str]) -> None:
    """Check, before there is a batch, that each reward function can be called with the columns of the dataset.

    Args:
        reward_funcs: One or several reward functions.
        columns: The names of the columns, and of the trainer's arguments that are passed.

    Raises:
        TypeError: if a function cannot take its keyword arguments.
        RunError: if a function runs programs and no sandbox is available.
    """
    passed_columns = [name for name in columns if name not in REPLACED_COLUMNS]
    all_keywords = ["prompts", "completions", "completion_ids", *passed_columns]
    for function, name in zip(reward_func_list(reward_funcs), reward_names(reward_funcs), strict=True):
        check_sandbox("reward_funcs", function)
        keywords = [keyword for keyword in all_keywords if receives(function, keyword)]
        try:
            inspect.signature(function).bind(**dict.fromkeys(keywords))
        except ValueError:
            continue  # some built-in functions have no signature that can be checked
        except TypeError as error:
            expected = f"expected parameters for {', '.join(keywords)}, or some of them and **kwargs"
            mismatch = f"does not fit the batch: {error}"
            raise InputTypeError(f"reward function {name!r}", function, expected, problem=mismatch) from error
        _check_defaults(function, name, [keyword for keyword in keywords if keyword not in TRAINER_ARGUMENTS])


def receives(function: Callable, keyword: str) -> bool:
    """Return True if a function is called with this keyword.

    Every column of the dataset is passed, but an argument of the trainer only if the function accepts it.
    """
    if keyword in settings_of(function):
        return False
    if keyword not in TRAINER_ARGUMENTS:
        return True
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return keyword in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _check_defaults(function: Callable, name: str, columns: Iterable[str]) -> None:
    """Raise TypeError if a column, which is a list, would override a default that is a number or a text."""
    parameters = inspect.signature(function).parameters
    for column in columns:
        if column in parameters and isinstance(default := parameters[column].default, numbers.Number | str):
            expected = "rename one of them, bind the setting with functools.partial, or give it no default"
            conflict = f"has the setting {column}={default!r}, and the data a column {column!r}"
            raise InputTypeError(f"reward function {name!r}", function, expected, problem=conflict)


def settings_of(function: Callable) -> set[str]:
    """Return the parameters of a reward function that are settings: no column is passed for them.

    The parameters that `functools.partial` has bound are settings. For a reward of this package, so are the parameters
    with a default other than None. Your own function receives every column of the dataset, as in TRL.
    """
    *partials, inner = _partials_and_function(function)
    bound = {name for layer in partials for name in layer.keywords}  # type: ignore[attr-defined]
    if not is_defined_in_package(inner):
        return bound
    parameters = inspect.signature(inner).parameters.values()
    return bound | {p.name for p in parameters if p.default is not p.empty and p.default is not None}


def check_weights(reward_weights: Any, names: Sequence[str]) -> None:
    """Raise InputError, which is a ValueError, unless there is one finite weight for each function, or None.

    reward_weights: The weights.
    names: The names of the functions.
    """
    weights = _weight_list(reward_weights, names)
    are_finite = all(isinstance(weight, numbers.Real) and math.isfinite(weight) for weight in weights)
    if len(weights) != len(names) or not are_finite:
        functions = f"the {len(names)} reward functions ({', '.join(names)})"
        raise InputError("reward_weights", weights, f"expected one finite number for each of {functions}")


def weights_tensor(reward_weights: Any, names: Sequence[str]) -> Float[Tensor, " F"]:
    """Return the weights as a tensor, after `check_weights`; None means 1 for each of the functions with these names.

    Raises:
        ValueError: unless there is one finite weight for each function.
    """
    weights = _weight_list(reward_weights, names)
    check_weights(weights, names)
    return torch.tensor(weights, dtype=torch.float32)


def _weight_list(reward_weights: Any, names: Sequence[str]) -> list:
    """Return weights in a list, an array or a tensor as a list; None means 1 for each of the functions."""
    plain_weights = reward_weights.tolist() if hasattr(reward_weights, "tolist") else reward_weights
    return [1.0] * len(names) if plain_weights is None else list(plain_weights)
