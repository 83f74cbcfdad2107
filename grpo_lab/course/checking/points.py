"""The points of an answer, from the share of cases that are right.

1. `property_shares` computes the share of right cases for each property: values, gradients and stability.
2. `rescaled_share` removes from the share of values what is right without any work.
3. `earned_points` weighs the shares.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from grpo_lab.course.checking.mistakes import unrepaired_stub, wrong_outcome
from grpo_lab.course.checking.outcome import (
    Fault,
    Outcome,
    close_entries,
    equal_data,
    equal_gradients,
    equal_outcomes,
    equal_values,
    same_numbers,
)
from grpo_lab.course.checking.run_cases import Attempt, expected_outcomes, outcome_of
from grpo_lab.course.exercise import Exercise

NEARLY_RIGHT = 1e-3  # the relative tolerance within which a number counts as nearly right
WEIGHTS = {"values": 6, "gradients": 3, "stability": 1}  # the weight of each property in the points of an exercise
MAX_CHANCE_SHARE = 0.2  # an answer with no larger share of right cases may be right by chance, and earns nothing


def property_shares(attempt: Attempt) -> dict[str, float]:
    """Return the share of cases that are right for each property: "values", "gradients" and "stability".

    Gradients and stability count only if all values are right: an answer that returns zeros is also stable. A case
    without an outcome counts as wrong.
    """
    exercise, expected = attempt.exercise, attempt.expected
    missing = [Outcome(fault=Fault.UNREACHED)] * (len(expected) - len(attempt.outcomes))
    triples = list(zip(exercise.cases, [*attempt.outcomes, *missing], expected, strict=True))
    ordinary = [(got, right) for case, got, right in triples if case.tested_property == "values"]
    extreme = [(got, right) for case, got, right in triples if case.tested_property == "stability"]
    varying = _varying_results([right for _, right in ordinary])
    shares = {"values": fmean(_case_share(got, right, exercise, varying) for got, right in ordinary)}
    if exercise.gradient_of:
        shares["gradients"] = fmean(equal_gradients(got, right, exercise) for got, right in ordinary)
    if extreme:
        # If gradients are wrong on ordinary inputs, they already cost their own share, and stability is judged by
        # values alone.
        agree = equal_outcomes if shares.get("gradients", 1) == 1 else equal_values
        shares["stability"] = fmean(agree(got, right, exercise) for got, right in extreme)
    return shares if shares["values"] == 1 else dict.fromkeys(shares, 0.0) | {"values": shares["values"]}


def rescaled_share(share: float, exercise: Exercise, seed: int) -> float:
    """Return a share of right values, rescaled so that what is right without any work earns 0."""
    free_share = _free_share(exercise, seed)
    return max(share - free_share, 0) / (1 - free_share) if free_share < 1 else 0.0


def earned_points(max_points: int, *shares_of_attempts: dict[str, float]) -> int | float:
    """Return the points of an answer, from the shares of one or more attempts with it, on different inputs.

    Of several attempts, the smallest share of each property counts.

    - If all values are right, the points are shared among the properties by their weights. A property that holds in all
      cases earns its whole weight; any other earns half of its share of the weight.
    - If some values are wrong, the answer earns half of the share of right values, so a wrong rule earns at most half.
    - If a fifth of the gradients or more are wrong, it earns at most half, since the answer trains something else.
    - If all values are right in the first attempt only, it earns nothing: they were written down for its inputs.

    Args:
        max_points: The points of an answer that is right in all cases.
        shares_of_attempts: The share of each property, for each attempt.
    """
    names = {name: None for shares in shares_of_attempts for name in shares}
    shares_of_property = {name: [shares.get(name, 0.0) for shares in shares_of_attempts] for name in names}
    if not names or (min(shares_of_property["values"]) < shares_of_property["values"][0] == 1):
        return 0
    smallest = {name: min(shares) for name, shares in shares_of_property.items()}
    if smallest["values"] < 1:
        earned_share = smallest["values"] / 2 if smallest["values"] > MAX_CHANCE_SHARE else 0
    else:
        weights = {name: WEIGHTS[name] * (1 if share == 1 else share / 2) for name, share in smallest.items()}
        earned_share = sum(weights.values()) / sum(WEIGHTS[name] for name in names)
        if smallest.get("gradients", 1) <= 0.8:
            earned_share = min(earned_share, 0.5)
    points = round(max_points * earned_share, 1)
    return int(points) if points == int(points) else points


def _case_share(got: Outcome, expected: Outcome, exercise: Exercise, varying: set[str]) -> float:
    """Return how right a case is: 1 if it is right, else the share that is nearly right.

    That share is at most 3/4, and counts as 0 below a half.

    varying: The names of the results for which a share is given.
    """
    if equal_values(got, expected, exercise):
        return 1.0
    if got.fault or got.error:
        return 0.0
    values, right_values = ([outcome.results.get(name) for name in sorted(varying)] for outcome in (got, expected))
    nearly = _nearly_right_share(values, right_values)
    return min(nearly, 0.75) if nearly >= 0.5 else 0.0


def _varying_results(expected: Sequence[Outcome]) -> set[str]:
    """Return the names of the results that differ between cases, or all names if none differs.

    An observation that is the same in all cases can be right without any work, so no share is given for it.
    """
    results_of_cases = [outcome.results for outcome in expected if outcome.results]
    names = {name for results in results_of_cases for name in results}
    varying = set()
    for name in names:
        first, *others = (results.get(name) for results in results_of_cases)
        if any(not equal_data(value, first, 0.0) for value in others):
            varying.add(name)
    return varying or names


def _nearly_right_share(got: Any, expected: Any) -> float:
    """Return the share of the parts that agree to one in a thousand; types and shapes may differ.

    A tensor counts by the share of its numbers that agree if that is at least three quarters, and as 0 otherwise.
    """
    got, expected = _without_wrapping(got), _without_wrapping(expected)
    if isinstance(got, list) and isinstance(expected, list):
        longest = max(len(got), len(expected))
        shares = [_nearly_right_share(a, b) for a, b in zip(got, expected, strict=False)]
        return sum(shares) / longest if longest else 1.0
    if isinstance(got, int | float) and isinstance(expected, int | float):
        return float(same_numbers(got, expected, NEARLY_RIGHT))
    if not (isinstance(got, Tensor) and isinstance(expected, Tensor) and got.numel() == expected.numel() > 0):
        return float(equal_data(got, expected, NEARLY_RIGHT))
    share = float(close_entries(got.double().flatten(), expected.double().flatten(), NEARLY_RIGHT).double().mean())
    return share if share >= 0.75 else 0.0


def _without_wrapping(result: Any) -> Any:
    """Return the values of a dictionary as a list, the number of a one-element tensor, and other results unchanged."""
    if isinstance(result, dict):
        return [*result.values()]
    return result.item() if isinstance(result, Tensor) and result.numel() == 1 else result


@cache
def _free_share(exercise: Exercise, seed: int) -> float:
    """Return the share of values that are right without any work.

    In a repair exercise this is the share of the stub, in a variant that of the lesson's function, and otherwise that
    of the best constant answer.
    """
    indices = range(len(exercise.cases))
    initial = unrepaired_stub(exercise)
    if initial is None and exercise.is_variant:
        (initial,) = exercise.mistakes  # a variant's one known mistake is the lesson's function
    if initial is not None:
        effortless = [[wrong_outcome(exercise, initial, index, seed) for index in indices]]
    else:
        effortless = [[outcome_of(lambda *args, **kwargs: None, exercise, index, seed) for index in indices]]
        expected = expected_outcomes(exercise, seed)
        effortless += [[_filled(outcome, number) for outcome in expected] for number in (0, 1, -1)]
    return max(property_shares(Attempt(exercise, outcomes, seed))["values"] for outcomes in effortless)


def _filled(outcome: Outcome, number: int) -> Outcome:
    """Return the outcome with every number replaced by `number`, 0 or 1 (False or True); for -1, by its opposite."""
    return replace(outcome, results=_with_numbers(outcome.results, number), changed_arguments={})


def _with_numbers(tree: Any, number: int) -> Any:
    if isinstance(tree, dict):
        return {name: _with_numbers(part, number) for name, part in tree.items()}
    if isinstance(tree, list):
        return [_with_numbers(part, number) for part in tree]
    if isinstance(tree, bool):
        return bool(number) if number >= 0 else not tree
    if isinstance(tree, Tensor):
        opposite = ~tree if tree.dtype == torch.bool else -tree
        return torch.full_like(tree, number) if number >= 0 else opposite
    if isinstance(tree, int | float):
        return type(tree)(number) if number >= 0 else -tree
    return "" if isinstance(tree, str) else tree
