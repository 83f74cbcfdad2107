r"""Several reward functions, one reward: call each, check what it returned, add up by weight.

As in TRL: None is left out of the sum, and a completion to which no reward applies has the reward NaN, not 0, since a 0
would move the mean of its group. Whoever computes advantages has to leave it out. Stricter than TRL: a NaN or an
infinity that a reward function itself returns is an error, for it would reach the weights.
"""

import functools
import inspect
import math
import numbers
import warnings
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

_RESERVED = ("prompts", "completions")
# TRL does not hand these columns on either: the lists of the same purpose take their place.
_REPLACED = ("prompt", "completion", "completion_ids")


def score_completions(
    reward_funcs: Any,
    prompts: Any,
    completions: Any,
    completion_ids: Any,
    columns: dict[str, Any],
    reward_weights: Any = None,
) -> tuple[Float[Tensor, " B"], Float[Tensor, "B F"], list[str]]:
    r"""Call every reward function on a batch of completions and add up what they return.

    R_i = \sum_f w_f \, r_f(x_i, y_i) \tag{6.7}

    Args:
        reward_funcs: r, one or several callables `(completions, **kwargs) -> list[float | None]`.
        prompts: x, a list of B.
        completions: y, a list of B.
        completion_ids: a list of B lists of token ids.
        columns: the dataset's columns, each repeated to B entries.
        reward_weights: w, a finite number a function; None is 1 for each.

    Returns:
        The reward of each completion, shape (B,), NaN where no function applies; what each function returned, shape (B,
        F), NaN where it does not apply; and the functions' names. float32, on the CPU.

    Raises:
        TypeError, ValueError: for what a function returned, or for keywords that it cannot take; the message names it.
        RuntimeError: from an exception inside a reward function, with its name.
    """
    functions = [reward_funcs] if callable(reward_funcs) else list(reward_funcs)
    names = reward_names(functions)
    weights = _weights(reward_weights, names)
    keywords = _keywords(prompts, completions, completion_ids, columns)
    returned = [_call(function, name, keywords) for function, name in zip(functions, names, strict=True)]
    per_func = torch.tensor(returned, dtype=torch.float32).T
    rewards = (weights * per_func).nansum(dim=1)  # B (6.7)
    nobody = per_func.isnan().all(dim=1)
    if nobody.any():
        rows = nobody.nonzero().flatten().tolist()
        message = (
            f"every reward function ({', '.join(names)}) returned None for {len(rows)} of {len(prompts)} completions"
            f" (first: row {rows[0]}): their reward is NaN, and they take no part in training"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    return rewards.masked_fill(nobody, math.nan), per_func, names


def reward_names(reward_funcs: list) -> list[str]:
    """A name for each reward function, as in TRL: its `__name__` (of a partial, the inner one) or its class's name.

    A name that is taken already gets a number: `accuracy_reward`, `accuracy_reward_2`. A lambda is called "lambda".
    """
    names: list[str] = []
    if not reward_funcs:
        raise ValueError("reward_funcs is empty; at least one reward function is needed")
    for function in reward_funcs:
        if not callable(function):
            raise TypeError(f"reward_funcs holds {function!r}, which cannot be called")
        while isinstance(function, functools.partial):
            function = function.func
        name = getattr(function, "__name__", type(function).__name__).strip("<>")
        numbered = (f"{name}_{number}" for number in range(2, len(reward_funcs) + 2))
        names.append(next(n for n in (name, *numbered) if n not in names))
    return names


def _weights(reward_weights: Any, names: list[str]) -> Float[Tensor, " F"]:
    given = reward_weights.tolist() if hasattr(reward_weights, "tolist") else reward_weights
    weights = [1.0] * len(names) if given is None else list(given)
    if len(weights) != len(names):
        functions = f"{len(names)} reward functions ({', '.join(names)})"
        raise ValueError(f"reward_weights has {len(weights)} entries for {functions}")
    if not all(isinstance(weight, numbers.Real) and math.isfinite(weight) for weight in weights):
        raise ValueError(f"reward_weights is {weights}; every weight has to be a finite number")
    return torch.tensor(weights, dtype=torch.float32)


def _keywords(prompts: Any, completions: Any, completion_ids: Any, columns: dict[str, Any]) -> dict[str, Any]:
    clashes = [name for name in _RESERVED if name in columns]
    if clashes:
        raise ValueError(f"the dataset has a column {clashes[0]!r}; that keyword is the trainer's, rename the column")
    kept = {name: values for name, values in columns.items() if name not in _REPLACED}
    keywords = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids, **kept}
    for name, values in keywords.items():
        if len(values) != len(completions):
            raise ValueError(f"{name} has {len(values)} entries for {len(completions)} completions")
    return keywords


def _call(function: Callable, name: str, keywords: dict[str, Any]) -> list[float]:
    _check_signature(function, name, keywords)
    try:
        # Each gets lists of its own: sorting one in place must not change what the next function sees.
        returned = function(**{keyword: list(values) for keyword, values in keywords.items()})
    except Exception as error:
        raise RuntimeError(f"reward function {name!r} failed: {type(error).__name__}: {error}") from error
    return _checked(returned, name, len(keywords["completions"]))


def _check_signature(function: Callable, name: str, keywords: dict[str, Any]) -> None:
    """Say what is wrong with a signature before Python's own message, which names neither the remedy nor the dataset.

    A function without `**kwargs` is refused, not called with fewer keywords: TRL would refuse it too.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return  # some builtins have no signature to look at
    by_name = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    needed = {p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    missing, surplus = sorted(needed - keywords.keys()), [keyword for keyword in keywords if keyword not in by_name]
    if missing:
        raise TypeError(f"reward function {name!r} needs {', '.join(missing)}; the batch has {', '.join(keywords)}")
    if surplus and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise TypeError(f"reward function {name!r} does not take {', '.join(surplus)}; add **kwargs to its parameters")


def _checked(returned: Any, name: str, B: int) -> list[float]:
    if inspect.iscoroutine(returned):
        returned.close()
        raise TypeError(f"reward function {name!r} is async; only ordinary functions are supported")
    values = returned.tolist() if hasattr(returned, "tolist") else returned
    if not isinstance(values, (list, tuple)):
        raise TypeError(f"reward function {name!r} returned {type(returned).__name__}; a list of {B} rewards is needed")
    if len(values) != B:
        raise ValueError(f"reward function {name!r} returned {len(values)} rewards for {B} completions")
    return [_number(value, name, row) for row, value in enumerate(values)]


def _number(value: Any, name: str, row: int) -> float:
    if value is None:
        return math.nan
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    if not isinstance(value, numbers.Real):
        what = f"{type(value).__name__} {value!r:.60}"
        raise TypeError(f"reward function {name!r} returned {what} for row {row}; a number or None is needed")
    # Compared as it is: converting a huge integer to a float would overflow first.
    if not abs(value) <= torch.finfo(torch.float32).max:
        remedy = "a reward is finite in float32; return None where it does not apply"
        raise ValueError(f"reward function {name!r} returned {value} for row {row}; {remedy}")
    return float(value)
