r"""Several reward functions, one reward: call each function, check what it returned, add up by weight.

As in TRL, None is left out of the sum. A completion to which no reward applies has the reward NaN, not 0, since a 0
would change the mean of its group; advantages have to be computed without it. The checks are stricter than TRL's: if a
reward function itself returns NaN or infinity, an error is raised, since the value would reach the model's weights.
"""

import copy
import functools
import inspect
import math
import numbers
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from grpo_lab.base.checks import InputError, InputTypeError, RunError
from grpo_lab.base.names import TRAINER_ARGUMENTS
from grpo_lab.base.own_code import location_in_own_code
from grpo_lab.rewards.concurrent import Pending, is_async, start
from grpo_lab.rewards.text import check_column, shortened
from grpo_lab.sandbox.python import check_walls

# A standard deviation adds up the squares of all rewards of a batch. With this limit the sum stays finite in float32.
LARGEST_REWARD = 1e15
# Keyword arguments that are passed to reward functions without a copy. A function may change all others in place.
NOT_COPIED = (*TRAINER_ARGUMENTS, "environments")
_MESSAGES_HINT = 'a completion is a list of messages here: completion[0]["content"] is the text of the first'
# Columns of the dataset that are not passed to reward functions: the trainer's lists replace them, as in TRL.
_REPLACED_COLUMNS = ("prompt", "completion", "completion_ids")


class RewardError(RunError):
    """A reward function failed, or returned something that is not a reward; `name` is the name of the function."""

    def __init__(self, name: str, found: str, allowed: str = ""):
        self.name = name
        super().__init__(f"reward function {name!r}", name, allowed, found=found)


class Rewards(NamedTuple):
    """The rewards of B completions by F functions, on the CPU."""

    total: Float[Tensor, " B"]  # weighted sum; NaN for a completion to which no reward function applies
    rewards_per_func: Float[Tensor, "B F"]  # NaN if this function does not apply to this completion
    names: list[str]  # names of the F reward functions


def score_completions(
    reward_funcs: Any,
    prompts: Any,
    completions: Any,
    completion_ids: Any,
    columns: dict[str, Any],
    reward_weights: Any = None,
) -> Rewards:
    r"""Call every reward function on a batch of completions and add up what they return.

    R_i = \sum_f w_f \, r_f(x_i, y_i) \tag{6.7}

    Args:
        reward_funcs: r, one or several callables `(completions, **kwargs) -> list[float | None]`. Each function
            receives its own deep copies, so changing them in place affects neither other functions nor the caller.
        prompts: x, a list of B prompts: strings or lists of chat messages.
        completions: y, a list of B completions: strings or lists of chat messages.
        completion_ids: The token ids of the completions, B lists.
        columns: The columns of the dataset, each repeated to B entries.
        reward_weights: w, a finite number for each function; None means 1 for each.

    Returns:
        The total reward of each completion, the rewards per function, and the names of the functions.

    Raises:
        InputTypeError: if a function cannot take the keyword arguments.
        RewardError: if a function raises an exception, or does not return a valid reward for each completion; the
            message names the function and the row. The exception of a bug in this package is not wrapped.
    """
    functions = as_list(reward_funcs)
    names = reward_names(functions)
    weights = check_weights(reward_weights, names)
    keywords = _keyword_arguments(prompts, completions, completion_ids, columns)
    check_signatures(functions, columns)
    returned = [_call(function, name, keywords) for function, name in zip(functions, names, strict=True)]
    # Reading a list of a coroutine waits for it; by now all coroutines of the batch have been started.
    reward_lists = [list(rewards_of_function) for rewards_of_function in returned]
    rewards_per_func = torch.tensor(reward_lists, dtype=torch.float32).T
    rewards = (weights * rewards_per_func).nansum(dim=1)  # B (6.7)
    none_applies = rewards_per_func.isnan().all(dim=1)
    if rows := none_applies.nonzero().flatten().tolist():
        warning = (
            f"every reward function ({', '.join(names)}) returned None for {len(rows)} of {len(prompts)} completions"
        )
        ending = f" (first: row {rows[0]}): their reward is NaN, and they take no part in training"
        warnings.warn(warning + ending, RuntimeWarning, stacklevel=2)
    return Rewards(rewards.masked_fill(none_applies, math.nan), rewards_per_func, names)


def reward_names(reward_funcs: Any) -> list[str]:
    """Return a distinct name for each of one or several reward functions.

    As in TRL, the name is the `__name__` of the function, or the name of the class of a callable object. A name that
    occurs again gets a number: `accuracy_reward`, `accuracy_reward_2`. A lambda is called "lambda".
    """
    reward_funcs = as_list(reward_funcs)
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


def is_of_this_package(function: Callable) -> bool:
    """Return True if a function, or the function inside a partial, is defined in this package."""
    return (getattr(innermost_function(function), "__module__", None) or "").startswith("grpo_lab.")


def as_list(reward_funcs: Any) -> list:
    """Return one or several reward functions as a list; any other value becomes the only entry of the list."""
    is_single = callable(reward_funcs) or not isinstance(reward_funcs, Iterable) or isinstance(reward_funcs, str)
    return [reward_funcs] if is_single else list(reward_funcs)


def as_list_or_empty(reward_funcs: Any) -> list:
    """Return one or several reward functions as a list, empty for None: an environment may give the rewards instead."""
    return [] if reward_funcs is None else as_list(reward_funcs)


def check_signatures(reward_funcs: Any, columns: Iterable[str]) -> None:
    """Check, before there is a batch, that each reward function can be called with the columns of the dataset.

    Args:
        reward_funcs: One or several reward functions.
        columns: The names of the columns, and of the trainer's arguments that are passed.

    Raises:
        TypeError: if a function cannot take its keyword arguments.
        RunError: if a function runs programs and no sandbox is available.
    """
    all_names = [
        "prompts",
        "completions",
        "completion_ids",
        *(name for name in columns if name not in _REPLACED_COLUMNS),
    ]
    for function, name in zip(as_list(reward_funcs), reward_names(reward_funcs), strict=True):
        check_walls("reward_funcs", function)
        names = [keyword for keyword in all_names if _receives(function, keyword)]
        try:
            inspect.signature(function).bind(**dict.fromkeys(names))
        except ValueError:
            continue  # some built-in functions have no signature that can be checked
        except TypeError as error:
            expected = f"expected parameters for {', '.join(names)}, or some of them and **kwargs"
            mismatch = f"does not fit the batch: {error}"
            raise InputTypeError(f"reward function {name!r}", function, expected, found=mismatch) from error
        _check_defaults(function, name, [name for name in names if name not in TRAINER_ARGUMENTS])


def _receives(function: Callable, keyword: str) -> bool:
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
            raise InputTypeError(f"reward function {name!r}", function, expected, found=conflict)


def settings_of(function: Callable) -> set[str]:
    """Return the parameters of a reward function that are settings: no column is passed for them.

    The parameters that `functools.partial` has bound are settings. For a reward of this package, so are the parameters
    with a default other than None. Your own function receives every column of the dataset, as in TRL.
    """
    *partials, inner = _partials_and_function(function)
    bound = {name for layer in partials for name in layer.keywords}  # type: ignore[attr-defined]
    if not is_of_this_package(inner):
        return bound
    parameters = inspect.signature(inner).parameters.values()
    return bound | {p.name for p in parameters if p.default is not p.empty and p.default is not None}


def check_weights(reward_weights: Any, names: Sequence[str]) -> Float[Tensor, " F"]:
    """Return the weights as a tensor; None means 1 for each of the functions with these names.

    Raises:
        ValueError: unless there is one finite weight for each function.
    """
    plain_weights = reward_weights.tolist() if hasattr(reward_weights, "tolist") else reward_weights
    weights = [1.0] * len(names) if plain_weights is None else list(plain_weights)
    are_finite = all(isinstance(weight, numbers.Real) and math.isfinite(weight) for weight in weights)
    if len(weights) != len(names) or not are_finite:
        functions = f"the {len(names)} reward functions ({', '.join(names)})"
        raise InputError("reward_weights", weights, f"expected one finite number for each of {functions}")
    return torch.tensor(weights, dtype=torch.float32)


def _keyword_arguments(prompts: Any, completions: Any, completion_ids: Any, columns: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of reward functions for this batch, after checking their lengths and names."""
    if clash := next((name for name in ("prompts", "completions") if name in columns), None):
        problem = f"has {clash!r}, which is the trainer's own keyword"
        raise InputError("columns", clash, "expected another name", found=problem)
    passed_columns = {name: values for name, values in columns.items() if name not in _REPLACED_COLUMNS}
    keywords = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids, **passed_columns}
    for name, values in keywords.items():
        if name not in TRAINER_ARGUMENTS:
            check_column(name, values, completions)
    return keywords


def _call(function: Callable, name: str, keywords: dict[str, Any]) -> list[float] | Pending:
    """Call a function and return its checked rewards; start a coroutine and return rewards that wait when read."""
    copies = {
        keyword: values if keyword in NOT_COPIED else list(map(copy.deepcopy, values))
        for keyword, values in keywords.items()
        if _receives(function, keyword)
    }
    completions = keywords["completions"]
    if is_async(function):
        future = start(function(**copies))
        return Pending(lambda: _checked_result(function, name, future.result, completions))

    def call() -> Any:
        # Restores the mode afterwards, in case the function switches gradients off.
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            return function(**copies)

    return _checked_result(function, name, call, completions)


def _checked_result(function: Callable, name: str, get_result: Callable[[], Any], completions: Sequence) -> list[float]:
    """Return the checked rewards of a function.

    Args:
        function: The reward function.
        name: The name of the function in messages.
        get_result: A function that returns the result of the reward function, or raises its exception.
        completions: The completions that were scored.

    Raises:
        RewardError: if the function raised an exception or its result is not a valid list of rewards.
    """
    try:
        rewards = get_result()
    except (Exception, SystemExit) as error:  # SystemExit: a library that exits would end the run silently
        location = location_in_own_code(error)
        is_bug_of_this_package = is_of_this_package(function) and not location
        if is_bug_of_this_package and not isinstance(error, InputError | OSError):
            raise  # not wrapped, so that the traceback is shown
        hint = _MESSAGES_HINT if _expected_text(error, completions) else ""
        raise RewardError(name, f"failed{location}: {type(error).__name__}: {error}", hint) from error
    return _checked_rewards(rewards, name, len(completions))


def _expected_text(error: BaseException, completions: Sequence) -> bool:
    """Return True if a function seems to have failed because a completion is a list of messages and not a text."""
    if not completions or not isinstance(completions[0], list):
        return False
    if isinstance(error, AttributeError):
        return isinstance(error.obj, list)
    # The functions of `re` begin their message with these words.
    return isinstance(error, TypeError) and str(error).startswith("expected string")


def _checked_rewards(rewards: Any, name: str, count: int) -> list[float]:
    """Return the rewards as floats, NaN for None.

    Raises:
        RewardError: unless there is a valid reward for each of `count` completions.
    """
    values = rewards.tolist() if hasattr(rewards, "tolist") else rewards
    is_list = isinstance(values, (list, tuple))
    if not is_list or len(values) != count:
        description = f"{len(values)} rewards" if is_list else type(rewards).__name__
        raise RewardError(name, f"returned {description}", f"expected a list of {count} rewards")
    return [_checked_reward(value, name, row) for row, value in enumerate(values)]


def _checked_reward(value: Any, name: str, row: int) -> float:
    if value is None:
        return math.nan
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    # The value is compared before it becomes a float, since converting a huge integer would overflow.
    if not (isinstance(value, numbers.Real) and value <= LARGEST_REWARD and not value < -LARGEST_REWARD):
        expected = f"expected a number of at most {LARGEST_REWARD:g} in size, or None where the reward does not apply"
        raise RewardError(name, f"returned {shortened(value)} for row {row}", expected)
    return float(value)
