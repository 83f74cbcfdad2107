r"""Several reward functions, one reward: call each, check what it returned, add up by weight.

As in TRL: None is left out of the sum, and a completion to which no reward applies has the reward NaN, not 0, since a 0
would move the mean of its group. Whoever computes advantages has to leave it out. Stricter than TRL: a NaN or an
infinity that a reward function itself returns is an error, for it would reach the weights.
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

# The squares of so many rewards as a batch has, added up for a standard deviation, fit in float32.
LARGEST_REWARD = 1e15
NOT_COPIED = (*TRAINER_ARGUMENTS, "environments")  # a function may change all else that it gets, which are copies
_AS_MESSAGES = 'a completion is a list of messages here: completion[0]["content"] is the text of the first'
# Columns whose place is taken by the lists of the same purpose; TRL does not hand them on either.
_REPLACED_COLUMNS = ("prompt", "completion", "completion_ids")


class RewardError(RunError):
    """A reward function that failed, or returned what is no reward; `name` is the function's."""

    def __init__(self, name: str, found: str, allowed: str = ""):
        self.name = name
        super().__init__(f"reward function {name!r}", name, allowed, found=found)


class Rewards(NamedTuple):
    """The rewards of B completions by F functions, on the CPU."""

    total: Float[Tensor, " B"]  # NaN where no reward function applied
    rewards_per_func: Float[Tensor, "B F"]  # NaN where one did not apply
    names: list[str]  # of the functions


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
        reward_funcs: r, one or several callables `(completions, **kwargs) -> list[float | None]`. Each gets copies of
            its own, messages included: what one changes in place reaches neither the next nor the caller.
        prompts: x, and completions: y, and completion_ids, their tokens: lists of B.
        columns: the dataset's columns, each repeated to B entries.
        reward_weights: w, a finite number per function; None is 1 for each.

    Returns:
        The reward of each completion, NaN where no function applies; what each function returned, NaN where it does not
        apply; and the functions' names. On the CPU.

    Raises:
        InputTypeError: for keywords that a function cannot take.
        RewardError: for an exception inside a function, and for what it returned; the message names it and the row. A
            bug in a reward of this package stays the exception that it is.
    """
    functions = as_list(reward_funcs)
    names = reward_names(functions)
    weights = check_weights(reward_weights, names)
    keywords = _keywords(prompts, completions, completion_ids, columns)
    check_signatures(functions, columns)
    returned = [_call(function, name, keywords) for function, name in zip(functions, names, strict=True)]
    results = [list(result) for result in returned]  # waits here for the coroutines, all of which have begun
    rewards_per_func = torch.tensor(results, dtype=torch.float32).T
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
    """A name for each of one or several reward functions, as in TRL: the `__name__`, or that of the class.

    A name that is taken already gets a number: `accuracy_reward`, `accuracy_reward_2`. A lambda is called "lambda".
    """
    reward_funcs = as_list(reward_funcs)
    if not reward_funcs or not all(map(callable, reward_funcs)):
        raise InputError("reward_funcs", reward_funcs, "expected at least one reward function, and nothing else")
    names: list[str] = []
    for function in map(unbound, reward_funcs):
        name = getattr(function, "__name__", type(function).__name__).strip("<>")
        numbered = (f"{name}_{number}" for number in range(2, len(reward_funcs) + 2))
        names.append(next(n for n in (name, *numbered) if n not in names))
    return names


def unbound(function: Callable) -> Callable:
    """The function that `functools.partial` has bound arguments to."""
    return _layers(function)[-1]


def _layers(function: Callable) -> list[Callable]:
    """A function behind each `functools.partial` around it, from the outermost partial to the function itself."""
    layers = [function]
    while isinstance(layers[-1], functools.partial):
        layers.append(layers[-1].func)
    return layers


def is_ours(function: Callable) -> bool:
    """True if a function, or what a partial has bound arguments to, is of this package."""
    return (getattr(unbound(function), "__module__", None) or "").startswith("grpo_lab.")


def as_list(reward_funcs: Any) -> list:
    """One or several reward functions as a list; what is neither is its one entry."""
    is_single = callable(reward_funcs) or not isinstance(reward_funcs, Iterable) or isinstance(reward_funcs, str)
    return [reward_funcs] if is_single else list(reward_funcs)


def as_list_or_empty(reward_funcs: Any) -> list:
    """One or several reward functions as a list, which None leaves empty: an environment may reward on its own."""
    return [] if reward_funcs is None else as_list(reward_funcs)


def check_signatures(reward_funcs: Any, columns: Iterable[str]) -> None:
    """Raise TypeError for a function that cannot take what it will be called with, before there is a batch.

    And RunError for one that runs programs where there are no walls around them.
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
            continue  # some builtins have no signature to look at
        except TypeError as error:
            expected = f"expected parameters for {', '.join(names)}, or some of them and **kwargs"
            mismatch = f"does not fit the batch: {error}"
            raise InputTypeError(f"reward function {name!r}", function, expected, found=mismatch) from error
        _check_defaults(function, name, [name for name in names if name not in TRAINER_ARGUMENTS])


def _receives(function: Callable, keyword: str) -> bool:
    """Say whether a function receives a keyword: every column, and of the trainer's keywords those it takes."""
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
    """Raise TypeError where a column, which is a list, would take the place of a default that is a number or a text."""
    parameters = inspect.signature(function).parameters
    for column in columns:
        if column in parameters and isinstance(default := parameters[column].default, numbers.Number | str):
            expected = "rename one of them, bind the setting with functools.partial, or give it no default"
            conflict = f"has the setting {column}={default!r}, and the data a column {column!r}"
            raise InputTypeError(f"reward function {name!r}", function, expected, found=conflict)


def settings_of(function: Callable) -> set[str]:
    """The parameters of a reward that no column of the data sets, even one of the same name.

    They are those that `functools.partial` has bound, and of a reward of this package those that have a default. A
    function of one's own gets each column under its name, as in TRL.
    """
    *partials, inner = _layers(function)
    bound = {name for layer in partials for name in layer.keywords}  # type: ignore[attr-defined]
    if not is_ours(inner):
        return bound
    parameters = inspect.signature(inner).parameters.values()
    return bound | {p.name for p in parameters if p.default is not p.empty and p.default is not None}


def check_weights(reward_weights: Any, names: Sequence[str]) -> Float[Tensor, " F"]:
    """The weights as a tensor, 1 each for None; ValueError unless there is a finite one for each function."""
    plain_weights = reward_weights.tolist() if hasattr(reward_weights, "tolist") else reward_weights
    weights = [1.0] * len(names) if plain_weights is None else list(plain_weights)
    finite = all(isinstance(weight, numbers.Real) and math.isfinite(weight) for weight in weights)
    if len(weights) != len(names) or not finite:
        functions = f"the {len(names)} reward functions ({', '.join(names)})"
        raise InputError("reward_weights", weights, f"expected one finite number for each of {functions}")
    return torch.tensor(weights, dtype=torch.float32)


def _keywords(prompts: Any, completions: Any, completion_ids: Any, columns: dict[str, Any]) -> dict[str, Any]:
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
    """The rewards of one function; of a coroutine, a list that waits for them when it is read, as all have begun."""
    copies = {
        keyword: values if keyword in NOT_COPIED else list(map(copy.deepcopy, values))
        for keyword, values in keywords.items()
        if _receives(function, keyword)
    }
    completions = keywords["completions"]
    if is_async(function):
        future = start(function(**copies))
        return Pending(lambda: _rewards_of(function, name, future.result, completions))

    def call() -> Any:
        with torch.set_grad_enabled(torch.is_grad_enabled()):  # on again, if the function switches gradients off
            return function(**copies)

    return _rewards_of(function, name, call, completions)


def _rewards_of(function: Callable, name: str, result: Callable[[], Any], completions: Sequence) -> list[float]:
    """The checked rewards of a function; a RewardError names it where it raised.

    result: returns what the function returned, or raises what it raised.
    """
    try:
        rewards = result()
    except (Exception, SystemExit) as error:  # a library that exits would end the run silently
        location = location_in_own_code(error)
        if is_ours(function) and not location and not isinstance(error, InputError | OSError):
            raise  # a bug of this package, whose reader needs its traceback
        hint = _AS_MESSAGES if _took_messages_for_text(error, completions) else ""
        raise RewardError(name, f"failed{location}: {type(error).__name__}: {error}", hint) from error
    return _checked_rewards(rewards, name, len(completions))


def _took_messages_for_text(error: BaseException, completions: Sequence) -> bool:
    """True if a function seems to have failed because it expected a text where a list of messages came."""
    if not completions or not isinstance(completions[0], list):
        return False
    if isinstance(error, AttributeError):
        return isinstance(error.obj, list)
    return isinstance(error, TypeError) and str(error).startswith("expected string")  # as those of `re` say


def _checked_rewards(rewards: Any, name: str, count: int) -> list[float]:
    """The rewards as numbers, NaN for None; a RewardError unless there is one for each of `count` completions."""
    values = rewards.tolist() if hasattr(rewards, "tolist") else rewards
    is_list = isinstance(values, (list, tuple))
    if not is_list or len(values) != count:
        result = f"{len(values)} rewards" if is_list else type(rewards).__name__
        raise RewardError(name, f"returned {result}", f"expected a list of {count} rewards")
    return [_checked_reward(value, name, row) for row, value in enumerate(values)]


def _checked_reward(value: Any, name: str, row: int) -> float:
    if value is None:
        return math.nan
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    # Compared as it is: converting a huge integer to a float would overflow first.
    if not (isinstance(value, numbers.Real) and value <= LARGEST_REWARD and not value < -LARGEST_REWARD):
        expected = f"expected a number of at most {LARGEST_REWARD:g} in size, or None where the reward does not apply"
        raise RewardError(name, f"returned {shortened(value)} for row {row}", expected)
    return float(value)
