"""Explain a wrong answer: by a known mistake, by a relation between all numbers, or by the first difference."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_lab.base.language import Phrase, fill
from grpo_lab.course.checking.attempt import Attempt
from grpo_lab.course.checking.compare import equal_values, is_number
from grpo_lab.course.checking.difference import Difference, first_difference
from grpo_lab.course.checking.mistakes import likely_mistakes, matching_mistake, values_of_choices
from grpo_lab.course.checking.outcome import Outcome
from grpo_lab.course.checking.relations import RELATION_TOLERANCE, constant_factor, relation_everywhere
from grpo_lab.course.checking.run_cases import case_arguments
from grpo_lab.course.checking.status import Fault
from grpo_lab.course.checking.verdict_parts import Part, PartKind
from grpo_lab.course.exercise import Mistake

ONLY_EXTREME = "Right on ordinary inputs; this one is large or extreme. "


@dataclass(frozen=True)
class Explanation:
    """The explanation of a wrong answer.

    Attributes:
        index: The index of the case that is shown.
        difference: The difference on that case.
        mistakes: The known mistakes that explain the answer; empty if none does.
        sentences: The sentences of the explanation. The first is shown at once, the others are folded.
    """

    index: int
    difference: Difference
    mistakes: list[Mistake]
    sentences: list[Part]


def explain(attempt: Attempt, has_right_values: bool) -> Explanation:
    """Explain a wrong answer by the first of these that applies.

    1. One known mistake that fits every case.
    2. A relation between all numbers, such as a constant factor.
    3. Several known mistakes that together explain most cases.
    4. The choices of an argument for which the answer is wrong, or the first difference.

    Args:
        has_right_values: Whether all values on ordinary inputs are right.
    """
    index = _simplest_case(attempt)
    difference = first_difference(attempt, index)
    if mistake := matching_mistake(attempt):
        return Explanation(index, difference, [mistake], [Part(PartKind.SENTENCES, mistake.explanation)])
    relation = ""
    if not difference.fault and not has_right_values:
        relation = _relation_sentence(attempt, difference.subject)
    if not relation and difference.fault in (Fault.NONE, Fault.TYPE, Fault.SHAPE):
        cases_by_mistake = likely_mistakes(attempt)
        if cases_by_mistake:
            mistakes = list(cases_by_mistake)
            index = cases_by_mistake[mistakes[0]][0]  # show a case with the mistake that is named first
            difference = first_difference(attempt, index)
            return Explanation(index, difference, mistakes, _likely_mistake_sentences(mistakes, difference))
    finding = relation or difference.finding
    choice_sentence = "" if difference.fault else _failing_choices(attempt)
    if choice_sentence:
        pairs = _result_pairs(attempt, difference.subject, attempt.failing)
        if not relation and len(pairs) > 1 and all(_are_numbers(*pair) for pair in pairs):
            finding = relation_everywhere(*_concatenate(_flatten_pair(pair) for pair in pairs)) or finding
        finding = Phrase(choice_sentence, " ", finding) if finding else choice_sentence
    is_extreme = index not in attempt.ordinary
    return Explanation(index, difference, [], [_difference_sentence(is_extreme, difference, finding)])


def _simplest_case(attempt: Attempt) -> int:
    """Return the failing case to show: ordinary before extreme ones, then wrong values before wrong gradients.

    Of equals it is the first, which has the smallest input.
    """

    def rank(index: int) -> tuple[bool, bool]:
        has_right_values = equal_values(attempt.outcomes[index], attempt.expected[index], attempt.exercise)
        return index not in attempt.ordinary, has_right_values

    return min(attempt.failing, key=rank)


def _likely_mistake_sentences(mistakes: list[Mistake], difference: Difference) -> list[Part]:
    """Return a sentence about each mistake; the first one says that it explains only some of the cases."""
    preamble = "On some inputs the result is what this mistake gives: "
    if difference.subject.startswith("the gradient of"):
        preamble = fill("The value is right here, but {0} is what this mistake gives:", difference.subject) + " "
    elif len(mistakes) > 1:
        preamble = "There seems to be more than one mistake. First: "
    return [
        Part(PartKind.SENTENCES, Phrase("And then: " if position else preamble, mistake.explanation))
        for position, mistake in enumerate(mistakes)
    ]


def _relation_sentence(attempt: Attempt, subject: str) -> str:
    """Return a sentence on how all numbers of all ordinary cases differ from the expected ones; "" if none fits.

    The numbers of all cases are taken together, because a single number is always off by some factor.

    subject: "the result", or the name of an observation.
    """
    pairs = _result_pairs(attempt, subject, attempt.ordinary)
    values = {leaf for got, _ in pairs for leaf in _distinct_leaves(got)}
    expected_values = {leaf for _, right in pairs for leaf in _distinct_leaves(right)}
    if len(values) == 1 < len(expected_values) and None not in values | expected_values:
        (constant,) = values
        if constant != 0 or isinstance(constant, bool):
            text = "Your result is {0} everywhere, for every input: which of the arguments decides it?"
            return fill(text, str(constant))
    if not all(_are_numbers(*pair) for pair in pairs):
        return ""
    vectors = [_flatten_pair(pair) for pair in pairs]
    return relation_everywhere(*_concatenate(vectors)) or _size_sentence(attempt, vectors)


def _size_sentence(attempt: Attempt, vectors: Sequence[tuple[Tensor, Tensor]]) -> str:
    """Return a sentence that names the axis by whose size the result is too large or too small in every case.

    It is "" if no axis of an argument has that size.

    vectors: The result and the expected one as vectors, for each ordinary case.
    """
    factors: list[float] = []
    arguments: list[dict[str, Any]] = []
    for index, (got, right) in zip(attempt.ordinary, vectors, strict=True):
        if not got.any() and not right.any():  # skipped because zeros agree with any factor
            continue
        constant = constant_factor(got, right) if right.any() and got.isfinite().all() else None
        if constant is None:
            return ""
        factors.append(constant)
        arguments.append(case_arguments(attempt.exercise, index, attempt.seed).arguments)
    if len(set(factors)) < 2:
        return ""
    for name, axis, sizes in _axis_sizes(arguments):
        if _all_close([constant * size for constant, size in zip(factors, sizes, strict=True)], [1] * len(sizes)):
            text = "Your result is divided by the size of axis {0} of `{1}`: is a mean taken where a sum is meant?"
            return fill(text, axis, name)
        if _all_close(factors, sizes):
            text = "Your result is multiplied by the size of axis {0} of `{1}`: is a sum taken where a mean is meant?"
            return fill(text, axis, name)
    return ""


def _axis_sizes(arguments: Sequence[dict[str, Any]]) -> Iterator[tuple[str, int, list[int]]]:
    """Yield the name of an argument, an axis, and the size of that axis in each case.

    Arguments that are not tensors with the same number of axes in all cases are skipped.
    """
    for name, first in arguments[0].items():
        if not isinstance(first, Tensor):
            continue
        of_all_cases = [values.get(name) for values in arguments]
        tensors = [value for value in of_all_cases if isinstance(value, Tensor) and value.ndim == first.ndim]
        if len(tensors) < len(arguments):
            continue
        for axis in range(first.ndim):
            yield name, axis, [tensor.shape[axis] for tensor in tensors]


def _failing_choices(attempt: Attempt) -> str:
    """Return a sentence on the choices of an argument for which the answer is wrong.

    It is "" unless the answer is wrong in all ordinary cases with these choices, and right in all others.
    """
    ordinary = set(attempt.ordinary)
    wrong = ordinary.intersection(attempt.failing)
    for name, values in values_of_choices(attempt.exercise).items():
        wrong_values = dict.fromkeys(values[index] for index in sorted(wrong))
        with_these_values = {index for index in ordinary if values[index] in wrong_values}
        if wrong and wrong == with_these_values != ordinary:
            shown = [repr(value) for value in wrong_values]
            listed = fill("{0} or {1}", *shown) if len(shown) == 2 else shown
            return fill("It is wrong where `{0}` is {1}, and right elsewhere.", name, listed)
    return ""


def _difference_sentence(is_extreme: bool, difference: Difference, finding: str) -> Part:
    preamble = ONLY_EXTREME if is_extreme and difference.fault in (Fault.NONE, Fault.ERROR) else ""
    sentence = fill("Something else is expected for {0}: compare the lines below.", difference.subject)
    return Part(PartKind.SENTENCES, Phrase(preamble, finding or sentence))


def _result_pairs(attempt: Attempt, subject: str, indices: Sequence[int]) -> list[tuple[Any, Any]]:
    """Return pairs of the result and the expected one for these cases, or of the observation named `subject`."""
    outcomes = [(attempt.outcomes[index], attempt.expected[index]) for index in indices]
    return [(_result_of(got, subject), _result_of(right, subject)) for got, right in outcomes]


def _result_of(outcome: Outcome, subject: str) -> Any:
    if subject == "the result" and outcome.observed is None:
        return outcome.value
    return (outcome.observed or {}).get(subject)


def _concatenate(pairs: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Concatenate the vectors of all results, and the vectors of all expected results."""
    got, right = zip(*pairs, strict=True)
    return torch.cat(got), torch.cat(right)


def _flatten_pair(pair: tuple[Any, Any]) -> tuple[Tensor, Tensor]:
    got, right = pair
    return torch.as_tensor(got).double().flatten(), torch.as_tensor(right).double().flatten()


def _are_numbers(got: Any, expected: Any) -> bool:
    if isinstance(got, Tensor) and isinstance(expected, Tensor):
        return got.shape == expected.shape and torch.bool not in (got.dtype, expected.dtype)
    return is_number(got) and is_number(expected)


def _distinct_leaves(value: Any) -> set:
    """Return the distinct numbers, booleans and texts in a result; any other value counts as None."""
    if isinstance(value, Tensor):
        return set(value.flatten().tolist())
    if isinstance(value, list):
        return {leaf for part in value for leaf in _distinct_leaves(part)}
    return {value if isinstance(value, bool | int | float | str) else None}


def _all_close(numbers: Sequence[float], expected: Sequence[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=RELATION_TOLERANCE) for a, b in zip(numbers, expected, strict=True))
