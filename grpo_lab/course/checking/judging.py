"""Compare the outcomes of an answer with the reference's, and return a verdict that explains what is not right yet.

A wrong answer is explained by a known mistake, by a relation between all numbers, or by the first difference. No
verdict contains source code of the reference.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_lab.base.language import Phrase, counted, fill
from grpo_lab.course.checking.difference import (
    RELATION_TOLERANCE,
    Difference,
    constant_factor,
    first_difference,
    relation_everywhere,
)
from grpo_lab.course.checking.mistakes import likely_mistakes, matching_mistake, unrepaired_stub, values_of_choices
from grpo_lab.course.checking.outcome import Fault, Outcome, Status, equal_values, is_number
from grpo_lab.course.checking.points import property_shares, rescaled_share
from grpo_lab.course.checking.run_cases import Attempt, case_arguments
from grpo_lab.course.checking.verdict import Part, PartKind, Verdict, full_parts, printed_parts, short_parts
from grpo_lab.course.exercise import Exercise, Mistake
from grpo_lab.course.stub import LIBRARY_GONE
from grpo_lab.formulas.source import read_equations

PROPERTY_NAMES = {"values": "values", "gradients": "gradients", "stability": "large and extreme inputs"}
ONLY_EXTREME = "Right on ordinary inputs; this one is large or extreme. "


# The sentences about code that cannot be judged by its numbers.
FORM_FAULTS = {
    Fault.SIGNATURE: "The arguments of your function differ from those of the stub: {message}. Copy the first lines of "
    "the stub, and leave them as they are.",
    Fault.ENDLESS: "Your function did not come to an end, or printed without end, and was stopped. Is there a loop "
    "whose condition never changes?",
    Fault.EXIT: "Your function ends the program (exit, quit, sys.exit or an interrupt that it raises). Return a "
    "value instead.",
    Fault.LIBRARY: "This is the library's own function, or calls it. It is for you to write: where your work is "
    "marked, the library does not have it.",
}


def judge(exercise: Exercise, outcomes: Sequence[Outcome], seed: int = 0) -> Verdict:
    """Return the verdict on outcomes of `run_student`, from this process or from another one.

    Args:
        outcomes: One outcome for each case. If the function was stopped, they end with the outcome that has a fault.
        seed: The seed from which the inputs were drawn.

    Raises:
        ValueError: If outcomes are missing although none has a fault.
    """
    attempt = Attempt(exercise, outcomes[: len(exercise.cases)], seed)
    shares = property_shares(attempt)
    stopped = next((outcome for outcome in outcomes if outcome.fault), None)
    if stopped is not None:
        folded_parts = tuple(printed_parts(stopped))
        return fault_verdict(exercise, stopped.fault, stopped.message, folded_parts=folded_parts, shares=shares)
    if len(outcomes) != len(exercise.cases):
        raise ValueError(f"outcomes has {len(outcomes)} entries; expected {len(exercise.cases)}, one per case")
    if any(o.error == "NotImplementedError" and o.message == LIBRARY_GONE for o in outcomes):
        return fault_verdict(exercise, Fault.LIBRARY)
    if all(outcome.error == "NotImplementedError" for outcome in outcomes):
        text = fill("Write its body, then check again. hint({0}) helps you to start.", repr(exercise.name))
        return _make_verdict(exercise, Status.NOT_STARTED, [Part(PartKind.SENTENCES, text)])
    return _wrong_verdict(attempt, shares) if attempt.failing_cases else _right_verdict(attempt, shares)


def mismatch_verdict(exercise: Exercise, sentence: str) -> Verdict:
    """Return the verdict on a function in memory that is not the one of the notebook page, as the sentence says."""
    return _make_verdict(exercise, Status.MALFORMED, [Part(PartKind.SENTENCES, sentence)], fault=Fault.STALE)


def fault_verdict(exercise: Exercise, fault: Fault, message: str = "", **fields) -> Verdict:
    """Return the verdict on code that cannot be judged by its numbers.

    Args:
        fault: The fault, a key of `FORM_FAULTS`.
        message: The details of a signature that differs.
        fields: More fields of the verdict.
    """
    sentence = fill(FORM_FAULTS[fault], message=Phrase(message))
    return _make_verdict(exercise, Status.MALFORMED, [Part(PartKind.SENTENCES, sentence)], fault=fault, **fields)


def _right_verdict(attempt: Attempt, shares: dict[str, float]) -> Verdict:
    exercise, outcomes = attempt.exercise, attempt.outcomes
    gradients = ", ".join(f"`{name}`" for name in exercise.gradient_of)
    subject, cases = "what it does" if exercise.observations else "values", counted(len(outcomes), "case")
    checked = fill("Checked: {0} on {1}.", subject, cases)
    if gradients:
        checked = fill("Checked: {0} on {1}, gradients of {2}.", subject, cases, gradients)
    folded_parts = tuple(printed_parts(outcomes[0]))
    sentences = [Part(PartKind.SENTENCES, Phrase("Well done. ", checked))]
    return _make_verdict(exercise, Status.RIGHT, sentences, folded_parts=folded_parts, shares=shares)


def _wrong_verdict(attempt: Attempt, shares: dict[str, float]) -> Verdict:
    exercise = attempt.exercise
    has_right_values = shares["values"] == 1
    explanation = explain(attempt, has_right_values)
    index, difference, mistakes = explanation.index, explanation.difference, explanation.mistakes
    first_sentence, *other_sentences = explanation.sentences
    has_fault_of_form = bool(difference.fault) and difference.fault != Fault.ERROR and not mistakes
    folded_parts = [*other_sentences, *full_parts(attempt, index, difference)]
    if mistakes and not exercise.is_variant:
        folded_parts += _equation_parts(exercise, mistakes[0])
    is_unchanged = unrepaired_stub(exercise) in mistakes
    if exercise.is_variant and mistakes:
        # The lesson's function earns nothing, even if its results are close to those of the class's formula.
        has_right_values, shares = False, shares | {"values": 0.0}
    elif not has_right_values:
        shares = shares | {"values": rescaled_share(shares["values"], exercise, attempt.seed)}
    return _make_verdict(
        exercise,
        _status(is_unchanged, has_right_values, has_fault_of_form),
        [first_sentence, *short_parts(attempt, index, difference, first_sentence.text)],
        folded_parts=(*folded_parts, _score_part(attempt, shares)),
        fault=difference.fault if has_fault_of_form else Fault.NONE,
        misconceptions=() if is_unchanged else tuple(mistake.name for mistake in mistakes),
        shares=shares,
    )


def _status(is_unchanged: bool, has_right_values: bool, has_fault_of_form: bool) -> Status:
    if is_unchanged:
        return Status.NOT_STARTED
    if has_right_values:
        return Status.PARTLY
    if has_fault_of_form:
        return Status.MALFORMED
    return Status.WRONG


def _equation_parts(exercise: Exercise, mistake: Mistake) -> list[Part]:
    """Return the equation that a mistake breaks; no part if the function has no equations.

    This is the equation that the mistake names, else that of the last line that it changes, else the last of all.
    """
    equations = read_equations(exercise.function)
    of_changed_lines = [equation for equation in equations if equation.tag in mistake.lines]
    named_by_mistake = [equation for equation in equations if equation.tag == mistake.equation]
    for candidates in (named_by_mistake, of_changed_lines, equations):
        if candidates:
            return [Part(PartKind.EQUATION, candidates[-1].latex, tag=candidates[-1].tag)]
    return []


def _score_part(attempt: Attempt, shares: dict[str, float]) -> Part:
    num_cases = len(attempt.outcomes)
    num_right = num_cases - len(attempt.failing_cases)
    marks = [fill("{0} ✓" if share == 1 else "{0} ✗", PROPERTY_NAMES[name]) for name, share in shares.items()]
    return Part(PartKind.SENTENCES, fill("{0} of {1} right: {2}.", num_right, counted(num_cases, "case"), marks))


def _make_verdict(exercise: Exercise, status: Status, parts: list[Part], **fields) -> Verdict:
    return Verdict(exercise.name, status, tuple(parts), max_points=exercise.points, **fields)


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
        pairs = _result_pairs(attempt, difference.subject, attempt.failing_cases)
        if not relation and len(pairs) > 1 and all(_are_numbers(*pair) for pair in pairs):
            finding = relation_everywhere(*_concatenate(_flatten_pair(pair) for pair in pairs)) or finding
        finding = Phrase(choice_sentence, " ", finding) if finding else choice_sentence
    is_extreme = index not in attempt.ordinary_cases
    return Explanation(index, difference, [], [_difference_sentence(is_extreme, difference, finding)])


def _simplest_case(attempt: Attempt) -> int:
    """Return the failing case to show: ordinary before extreme ones, then wrong values before wrong gradients.

    Of equals it is the first, which has the smallest input.
    """

    def rank(index: int) -> tuple[bool, bool]:
        has_right_values = equal_values(attempt.outcomes[index], attempt.expected[index], attempt.exercise)
        return index not in attempt.ordinary_cases, has_right_values

    return min(attempt.failing_cases, key=rank)


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
    pairs = _result_pairs(attempt, subject, attempt.ordinary_cases)
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
    for index, (got, right) in zip(attempt.ordinary_cases, vectors, strict=True):
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
    ordinary = set(attempt.ordinary_cases)
    wrong = ordinary.intersection(attempt.failing_cases)
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
    """Return pairs of the result of this name and the expected one, for these cases."""
    outcomes = [(attempt.outcomes[index], attempt.expected[index]) for index in indices]
    return [(got.results.get(subject), right.results.get(subject)) for got, right in outcomes]


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
