"""Call the reward functions, check what they return, and add their rewards up by weight.

As in TRL, None is left out of the sum. A completion to which no reward applies has the reward NaN, not 0, since a 0
would change the mean of its group; advantages have to be computed without it. The checks are stricter than TRL's: if a
reward function itself returns NaN or infinity, an error is raised, since the value would reach the model's weights.
"""

import copy
import math
import numbers
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from grpo_lab.base.checks import InputError, RunError
from grpo_lab.base.user_code import TRAINER_ARGUMENTS, location_in_user_code
from grpo_lab.rewards.argument_checks import check_column, describe_value
from grpo_lab.rewards.concurrent import PendingRewards, is_async, start_coroutine
from grpo_lab.rewards.functions import (
    REPLACED_COLUMNS,
    check_signatures,
    is_defined_in_package,
    receives,
    reward_func_list,
    reward_names,
    weights_tensor,
)

# A standard deviation adds up the squares of all rewards of a batch. With this limit the sum stays finite in float32.
MAX_REWARD = 1e15
# Keyword arguments of reward functions that are passed without a copy. A function may change all others in place.
NOT_COPIED = (*TRAINER_ARGUMENTS, "environments")
_MESSAGES_HINT = 'a completion is a list of messages here: completion[0]["content"] is the text of the first'


class RewardError(RunError):
    """A reward function failed, or returned something that is not a reward; `name` is the name of the function."""

    def __init__(self, name: str, problem: str, expected: str = ""):
        self.name = name
        super().__init__(f"reward function {name!r}", name, expected, problem=problem)


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
            receives its own deep copies of all arguments but `NOT_COPIED`, so changing those in place affects neither
            other functions nor the caller.
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
    functions = reward_func_list(reward_funcs)
    names = reward_names(functions)
    weights = weights_tensor(reward_weights, names)
    keywords = _keyword_arguments(prompts, completions, completion_ids, columns)
    check_signatures(functions, columns)
    started = [_call(function, name, keywords) for function, name in zip(functions, names, strict=True)]
    # Reading the rewards of an async function waits for it; by now all async functions of the batch have been started.
    reward_lists = [list(rewards_of_function) for rewards_of_function in started]
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


def _keyword_arguments(prompts: Any, completions: Any, completion_ids: Any, columns: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of reward functions for this batch, after checking their lengths and names."""
    if clash := next((name for name in ("prompts", "completions") if name in columns), None):
        problem = f"has {clash!r}, which is the trainer's own keyword"
        raise InputError("columns", clash, "expected another name", problem=problem)
    passed_columns = {name: values for name, values in columns.items() if name not in REPLACED_COLUMNS}
    keywords = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids, **passed_columns}
    for name, values in keywords.items():
        if name not in TRAINER_ARGUMENTS:
            check_column(name, values, completions)
    return keywords


def _call(function: Callable, name: str, keywords: dict[str, Any]) -> list[float] | PendingRewards:
    """Call a function and return its checked rewards; start an async one, and return rewards that wait when read."""
    copies = {
        keyword: values if keyword in NOT_COPIED else list(map(copy.deepcopy, values))
        for keyword, values in keywords.items()
        if receives(function, keyword)
    }
    completions = keywords["completions"]
    if is_async(function):
        future = start_coroutine(function(**copies))
        return PendingRewards(lambda: _result_or_reward_error(function, name, future.result, completions))

    def call() -> Any:
        # Restores the mode afterwards, in case the function switches gradients off.
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            return function(**copies)

    return _result_or_reward_error(function, name, call, completions)


def _result_or_reward_error(
    function: Callable, name: str, get_result: Callable[[], Any], completions: Sequence
) -> list[float]:
    """Return the rewards of a function after checking them, or raise its exception as a `RewardError`.

    Args:
        function: The reward function, which is not called here.
        name: Its name in messages.
        get_result: A function that returns the result of the reward function, or raises its exception.
        completions: The completions that were scored.

    Raises:
        RewardError: if the function raised an exception or its result is not a valid list of rewards.
    """
    try:
        result = get_result()
    except (Exception, SystemExit) as error:  # SystemExit: a library that exits would end the run silently
        location = location_in_user_code(error)
        is_bug_of_this_package = is_defined_in_package(function) and not location
        if is_bug_of_this_package and not isinstance(error, InputError | OSError):
            raise  # not wrapped, so that the traceback is shown
        hint = _MESSAGES_HINT if _failed_on_messages(error, completions) else ""
        raise RewardError(name, f"failed{location}: {type(error).__name__}: {error}", hint) from error
    return _rewards_as_floats(result, name, len(completions))


def _failed_on_messages(error: BaseException, completions: Sequence) -> bool:
    """Return True if a function seems to have failed because a completion is a list of messages and not a text."""
    if not completions or not isinstance(completions[0], list):
        return False
    if isinstance(error, AttributeError):
        return isinstance(error.obj, list)
    # The functions of `re` begin their message with these words.
    return isinstance(error, TypeError) and str(error).startswith("expected string")


def _rewards_as_floats(result: Any, name: str, count: int) -> list[float]:
    """Return the result of a reward function as floats, NaN for None.

    Raises:
        RewardError: unless there is a valid reward for each of `count` completions.
    """
    values = result.tolist() if hasattr(result, "tolist") else result
    is_list = isinstance(values, (list, tuple))
    if not is_list or len(values) != count:
        description = f"{len(values)} rewards" if is_list else type(result).__name__
        raise RewardError(name, f"returned {description}", f"expected a list of {count} rewards")
    return [_reward_as_float(value, name, row) for row, value in enumerate(values)]


def _reward_as_float(value: Any, name: str, row: int) -> float:
    """Return the reward of one completion as a float, NaN for None; raise RewardError if it is no valid reward."""
    if value is None:
        return math.nan
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    # The value is compared before it becomes a float, since converting a huge integer would overflow.
    if not (isinstance(value, numbers.Real) and value <= MAX_REWARD and not value < -MAX_REWARD):
        expected = f"expected a number of at most {MAX_REWARD:g} in size, or None where the reward does not apply"
        raise RewardError(name, f"returned {describe_value(value)} for row {row}", expected)
    return float(value)
