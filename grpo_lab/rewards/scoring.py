"""Call the reward functions, check what they return, keep what they log, and add their rewards up by weight.

As in TRL, None is left out of the sum. A completion to which no reward applies has the reward NaN, not 0, since a 0
would change the mean of its group; advantages have to be computed without it. The checks are stricter than TRL's: if a
reward function itself returns NaN or infinity, an error is raised, since the value would reach the model's weights.

Reward functions that are coroutines (`async def`) typically wait for a server, for example for a judge or a sandbox;
those of a batch run concurrently. TRL's arguments `log_metric` and `log_extra` log, and `trainer_state` is read.
"""

import asyncio
import contextlib
import copy
import functools
import inspect
import json
import math
import numbers
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from grpo_lab.base.checks import InputError, RunError
from grpo_lab.base.user_code import TRAINER_ARGUMENTS, location_in_user_code
from grpo_lab.rewards.functions import (
    REPLACED_COLUMNS,
    check_column,
    check_signatures,
    check_weights,
    describe_value,
    innermost_function,
    is_defined_in_package,
    is_real_within,
    received_keywords,
    reward_func_list,
    reward_names,
)

# Limit of a reward and of a weighted sum of rewards. A standard deviation adds up the squares of all sums of a batch;
# with this limit the result stays finite in float32.
MAX_REWARD = 1e15
EXPECTED_REWARD = f"expected a number of at most {MAX_REWARD:g} in size, or None where the reward does not apply"
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
        RunError: if a total reward is greater than `MAX_REWARD` in size.
    """
    functions = reward_func_list(reward_funcs)
    names = reward_names(functions)
    weights = torch.tensor(check_weights(reward_weights, names), dtype=torch.float32)
    keywords = _keyword_arguments(prompts, completions, completion_ids, columns)
    check_signatures(functions, columns)
    results = [_call(function, name, keywords) for function, name in zip(functions, names, strict=True)]
    # By now all async functions of the batch have been started.
    reward_lists = [
        _finished_rewards(function, name, result, completions)
        for function, name, result in zip(functions, names, results, strict=True)
    ]
    rewards_per_func = torch.tensor(reward_lists, dtype=torch.float32).T
    rewards = (weights * rewards_per_func).nansum(dim=1)  # B (6.7)
    check_totals(rewards)
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


def _call(function: Callable, name: str, keywords: dict[str, Any]) -> Any:
    """Call a reward function and return its result; start an async one and return the future of its result."""
    copies = {
        keyword: keywords[keyword] if keyword in NOT_COPIED else list(map(copy.deepcopy, keywords[keyword]))
        for keyword in received_keywords(function, keywords)
    }
    with _exceptions_as_reward_error(function, name, keywords["completions"]):
        if is_async(function):
            # All coroutines of a process run on one event loop: many clients of servers can only be used on one.
            return asyncio.run_coroutine_threadsafe(function(**copies), _background_loop())
        # Restores the mode afterwards, in case the function switches gradients off.
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            return function(**copies)


def _finished_rewards(function: Callable, name: str, result: Any, completions: Sequence) -> list[float]:
    """Return the rewards of a function as floats, NaN for None.

    Args:
        function: The reward function, which `_call` has called.
        name: Its name in messages.
        result: What it returned, or the future of it.
        completions: The completions that were scored.

    Raises:
        RewardError: if an async function fails, or unless there is a valid reward for each completion.
    """
    if is_async(function):
        with _exceptions_as_reward_error(function, name, completions):
            result = result.result()
    values = result.tolist() if hasattr(result, "tolist") else result
    is_list = isinstance(values, (list, tuple))
    if not is_list or len(values) != len(completions):
        description = f"{len(values)} rewards" if is_list else type(result).__name__
        raise RewardError(name, f"returned {description}", f"expected a list of {len(completions)} rewards")
    rewards = []
    for row, value in enumerate(values):
        if (reward := reward_as_float(value)) is None:
            raise RewardError(name, f"returned {describe_value(value)} for row {row}", EXPECTED_REWARD)
        rewards.append(reward)
    return rewards


@contextlib.contextmanager
def _exceptions_as_reward_error(function: Callable, name: str, completions: Sequence) -> Iterator[None]:
    """Raise an exception of a reward function inside the `with` block as a `RewardError`."""
    try:
        yield
    except (Exception, SystemExit) as error:  # SystemExit: a library that exits would end the run silently
        location = location_in_user_code(error)
        is_bug_of_this_package = is_defined_in_package(function) and not location
        if is_bug_of_this_package and not isinstance(error, InputError | OSError):
            raise  # not wrapped, so that the traceback is shown
        hint = _MESSAGES_HINT if _failed_on_messages(error, completions) else ""
        raise RewardError(name, f"failed{location}: {type(error).__name__}: {error}", hint) from error


def _failed_on_messages(error: BaseException, completions: Sequence) -> bool:
    """Return True if a function seems to have failed because a completion is a list of messages and not a text."""
    if not completions or not isinstance(completions[0], list):
        return False
    if isinstance(error, AttributeError):
        return isinstance(error.obj, list)
    # The functions of `re` begin their message with these words.
    return isinstance(error, TypeError) and str(error).startswith("expected string")


def reward_as_float(value: Any) -> float | None:
    """Return the reward of one completion as a float, NaN if it is None; return None if it is no valid reward.

    value: What a reward function, or the `get_reward` of an environment, returned for the completion.
    """
    if value is None:
        return math.nan
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    return float(value) if is_real_within(MAX_REWARD, value) else None


def check_totals(rewards: Float[Tensor, " B"]) -> None:
    """Raise RunError if the weighted sum of a completion's rewards is greater than `MAX_REWARD` in size, or NaN.

    The advantages of such rewards may be 0 or NaN, because the standard deviation overflows. TRL adds rewards up
    itself, so its trainer calls this check, too.
    """
    for row, total in enumerate(rewards.tolist()):
        if not abs(total) <= MAX_REWARD:
            expected = f"expected at most {MAX_REWARD:g} in size: smaller rewards, or smaller reward_weights"
            raise RunError("total reward", total, expected, problem=f"is {total:g} for row {row}")


def is_async(function: Callable) -> bool:
    """Return True for an `async def`, for an object whose `__call__` is one, and for a partial of either."""
    function = innermost_function(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


@functools.cache
def _background_loop() -> asyncio.AbstractEventLoop:
    """Start an event loop in a separate thread; the loop of a notebook is busy with the cell that waits."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="grpo_lab rewards").start()
    return loop


class RewardLog:
    """The numbers and columns that the reward functions of one batch log.

    Args:
        trainer_state: The progress of the run, with the attributes of transformers' TrainerState (`global_step`,
            `max_steps`). None outside a run: then the argument `trainer_state` is not passed to reward functions.
    """

    def __init__(self, trainer_state: Any = None):
        self._state = trainer_state
        self._values: dict[str, list[float]] = {}
        self._columns: dict[str, list] = {}

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments that reward functions receive for logging."""
        state = {} if self._state is None else {"trainer_state": self._state}
        return state | {"log_metric": self.log_metric, "log_extra": self.log_extra}

    def log_metric(self, name: str, value: float) -> None:
        """Log a number under this name in `metrics.jsonl`; of several numbers in a batch, the mean is written."""
        number = value.item() if hasattr(value, "item") else value
        if not isinstance(name, str) or not isinstance(number, numbers.Real):
            problem = f"was called with {name!r:.60} and {value!r:.60}"
            raise InputError("log_metric", value, "expected a text and a number", problem=problem)
        self._values.setdefault(name, []).append(float(number))

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Log a value for each completion under this name in `completions.jsonl`."""
        try:
            values = values.tolist() if hasattr(values, "tolist") else list(values)
            json.dumps([column, *values])
        except (TypeError, ValueError) as error:
            problem = f"was called with {column!r:.60} and {values!r:.60}"
            expected = "expected a text and a list of numbers, texts, or lists of these, one for each completion"
            raise InputError("log_extra", values, expected, problem=problem) from error
        self._columns.setdefault(str(column), []).extend(values)

    def metrics(self) -> dict[str, float | None]:
        """Return the mean of each logged number, or None instead of NaN."""
        means = {name: sum(values) / len(values) for name, values in self._values.items()}
        return {name: None if math.isnan(mean) else mean for name, mean in means.items()}

    def check_columns(self, num_completions: int) -> None:
        """Raise RunError if a logged column does not have one value for each of the completions."""
        for name, values in self._columns.items():
            if len(values) != num_completions:
                problem = f"got {len(values)} values for {name!r}"
                expected = f"expected {num_completions}, one for each completion"
                raise RunError("log_extra", values, expected, problem=problem)

    def columns(self, num_completions: int) -> "LoggedColumns":
        """Return the logged columns, after `check_columns`."""
        self.check_columns(num_completions)
        return LoggedColumns(self._columns)


class LoggedColumns:
    """The columns that reward functions logged, with one value per completion; `columns[rows]` selects rows."""

    def __init__(self, values: dict[str, list]):
        self.values = values

    def __getitem__(self, rows: slice | torch.Tensor) -> "LoggedColumns":
        num_rows = max(map(len, self.values.values()), default=0)
        if not num_rows:
            return self
        indices = torch.arange(num_rows)[rows if isinstance(rows, slice) else rows.cpu()].tolist()
        return LoggedColumns({name: [values[index] for index in indices] for name, values in self.values.items()})

    def row(self, index: int) -> dict[str, Any]:
        """Return the value of each column in this row."""
        return {name: values[index] for name, values in self.values.items()}
