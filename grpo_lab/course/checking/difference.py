"""Find the first difference between an outcome and the expected one, and describe it in a sentence.

Numbers that differ are described by a simple relation, such as a flipped sign, if one holds for all of them.
"""

import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from grpo_lab.base.language import Phrase, fill
from grpo_lab.course.checking.outcome import (
    RESULT,
    Fault,
    OtherObject,
    Outcome,
    close_entries,
    equal_data,
    is_number,
    no_gradient,
    same_gradient,
)
from grpo_lab.course.checking.run_cases import UNUSABLE_RESULT, Attempt
from grpo_lab.course.checking.value_text import dtype_name
from grpo_lab.course.exercise import Exercise

RELATION_TOLERANCE = 1e-5  # the relative tolerance within which a relation has to hold
ZERO = "It is 0, and another number is expected."
GRADIENT_CUT_OFF = (
    "The value is right, but it carries no gradient. Something on the way cuts it off: detach, item, tolist, numpy, "
    "no_grad, or a new tensor made from numbers."
)
SLIGHTLY = (
    "It is off by very little, less than one part in a hundred thousand of the largest number: look for an epsilon "
    "that does not belong there, or for arithmetic in a lower precision."
)
TINY = (
    "It is a very small number where exactly 0 is expected: look for an epsilon that does not belong there, or for "
    "what is left over by rounding."
)


@dataclass(frozen=True)
class Difference:
    """A difference between an outcome and the expected one.

    Attributes:
        subject: The name of what differs, such as "the result" or "the gradient of logp".
        got: The value in the outcome.
        expected: The value that is expected.
        finding: A sentence about the difference; "" if there is nothing to say.
        fault: An error or a fault of form; `NONE` for wrong numbers.
    """

    subject: str
    got: Any
    expected: Any
    finding: str = ""
    fault: Fault = Fault.NONE


def first_difference(attempt: Attempt, index: int) -> Difference:
    """Return the difference on case `index` that is worth repairing first.

    The order is: errors, faults of form, arguments changed in place, values, gradients.
    """
    exercise, got, expected = attempt.exercise, attempt.outcomes[index], attempt.expected[index]
    # The arguments that the function has to change in place for some inputs.
    changing = {name for outcome in attempt.expected for name in outcome.changed_arguments}
    if got.error:
        return _error_difference(got, expected)
    right_results = expected.results or {RESULT: None}  # without results if the reference raises an error
    value_differences = [
        _value_difference(name, got.results.get(name), right, exercise) for name, right in right_results.items()
    ]
    faults_of_form = [difference for difference in value_differences if difference and difference.fault]
    argument_differences = _argument_differences(got, expected, exercise, changing)
    gradient_differences = _gradient_differences(got, expected, exercise)
    return next(
        difference
        for difference in [*faults_of_form, *argument_differences, *value_differences, *gradient_differences]
        if difference
    )


def may_be_none(exercise: Exercise) -> bool:
    """Return True if the function may return None, or a list with None in it."""
    return "None" in str(inspect.signature(exercise.function).return_annotation)


def _error_difference(got: Outcome, expected: Outcome) -> Difference:
    message = next(iter(got.message.splitlines()), "")  # the details show all lines
    text: str = fill("It raises {0}: {1}", got.error, message[:300]) if message else fill("It raises {0}.", got.error)
    if got.message.startswith(UNUSABLE_RESULT):
        text = fill("It returns, but {0}", message[:300])
        if "inplace operation" in got.message:
            text += " Something that the gradient needs was changed in place."
    if got.error == "NotImplementedError":
        text = "For this input it is not written yet: it raises NotImplementedError."
    if "cuda" in got.message.lower():
        text += " Make new tensors on the device of the arguments, not on one of your own choice."
    return Difference(RESULT, OtherObject(got.error), expected.results.get(RESULT), text, Fault.ERROR)


def _value_difference(subject: str, got: Any, expected: Any, exercise: Exercise) -> Difference | None:
    if equal_data(got, expected, exercise.tolerance):
        return None
    if isinstance(got, Tensor) and isinstance(expected, Tensor):
        return _tensor_difference(subject, got, expected, exercise)
    if is_number(got) and is_number(expected):
        number, right = (torch.tensor(float(x), dtype=torch.float64) for x in (got, expected))
        return Difference(subject, got, expected, relation_of_tensors(number, right, exercise.tolerance))
    parts, right_parts = _as_dict(got), _as_dict(expected)
    if type(got) is type(expected) and parts is not None and right_parts is not None:
        return _part_difference(subject, parts, right_parts, exercise)
    if isinstance(got, bool) and isinstance(expected, bool) and subject.startswith("whether "):
        text = fill(
            "The check asks {0}: here {1}, and {2} is expected.", subject, _yes_or_no(got), _yes_or_no(expected)
        )
        return Difference(subject, got, expected, text)
    if _kind_name(got) == _kind_name(expected):
        return Difference(subject, got, expected)
    text = fill("{0} is {1}; {2} is expected.", _capitalised(subject), _kind_name(got), _kind_name(expected))
    if may_be_none(exercise) and (got is None or (expected is None and isinstance(got, str | float))):
        return Difference(subject, got, expected, text)
    if got is None:
        text += " If you did not mean to return None: does every path through the function end in a return?"
    return Difference(subject, got, expected, text, Fault.TYPE)


def _part_difference(subject: str, got: dict, expected: dict, exercise: Exercise) -> Difference:
    if len(got) != len(expected) and 0 in {**got, **expected}:
        text = fill("{0} entries in {1}; {2} are expected.", len(got), subject, len(expected))
        return Difference(subject, list(got.values()), list(expected.values()), text, Fault.TYPE)
    missing = [str(key) for key in expected if key not in got]
    extra = [str(key) for key in got if key not in expected]
    if missing or extra:
        sentences = [fill("{0} lacks {1}.", _capitalised(subject), ", ".join(missing[:6]))] if missing else []
        sentences += [fill("{0} should not have {1}.", _capitalised(subject), ", ".join(extra[:6]))] if extra else []
        text = sentences[0] if len(sentences) == 1 else Phrase(sentences[0], " ", sentences[1])
        return Difference(subject, list(got), list(expected), text, Fault.TYPE)
    container = subject.removeprefix("the ")
    compared = (_value_difference(f"{container}[{key!r}]", got[key], expected[key], exercise) for key in expected)
    differences = [difference for difference in compared if difference]
    return next((difference for difference in differences if difference.fault), differences[0])


def _tensor_difference(subject: str, got: Tensor, expected: Tensor, exercise: Exercise) -> Difference:
    if got.shape != expected.shape:
        text = fill(
            "{0} has shape {1}; {2} is expected.", _capitalised(subject), tuple(got.shape), tuple(expected.shape)
        )
        return Difference(subject, got, expected, text + _about_shapes(got, expected), Fault.SHAPE)
    if got.dtype != expected.dtype:
        text = fill("{0} has dtype {1}; {2} is expected.", _capitalised(subject), dtype_name(got), dtype_name(expected))
        return Difference(subject, got, expected, text, Fault.DTYPE)
    return Difference(subject, got, expected, relation_of_tensors(got, expected, exercise.tolerance))


def _about_shapes(got: Tensor, expected: Tensor) -> str:
    if sorted(got.shape) == sorted(expected.shape):
        return " The axes are in another order."
    if not got.ndim:
        return " It is one number: without an axis, a sum, a mean or a maximum goes over all of them."
    if [size for size in got.shape if size != 1] == [size for size in expected.shape if size != 1]:
        if got.ndim > expected.ndim:
            return " There is one axis of size 1 too many: think of keepdim, or of unsqueeze."
        return " An axis of size 1 is missing: think of keepdim or of unsqueeze, or of a sum over one axis too many."
    return " A single number is expected." if not expected.ndim else ""


def _argument_differences(
    got: Outcome, expected: Outcome, exercise: Exercise, changing: set[str]
) -> list[Difference | None]:
    """Return the differences in arguments: first those that must not be changed in place, then those that must.

    changing: The names of the arguments that the function has to change for some inputs.
    """
    unchanged = OtherObject("unchanged")
    differences: list[Difference | None] = []
    for name in [name for name in got.changed_arguments if name not in expected.changed_arguments]:
        value, fault = got.changed_arguments[name], Fault.INPLACE
        text = fill("Your function changes its argument {0} in place; the caller still needs it as it was.", name)
        if isinstance(value, Tensor):
            text += " Operations that end in _ and += on a tensor do that: x = x + y makes a new tensor."
        if name in changing:
            fault = Fault.NONE
            text = fill("With this input, the argument {0} has to stay unchanged, and your function changes it.", name)
        differences.append(Difference(fill("{0} after the call", name), value, unchanged, text, fault))
    for name, right in expected.changed_arguments.items():
        subject = fill("{0} after the call", name)
        if name in got.changed_arguments:
            differences.append(_value_difference(subject, got.changed_arguments[name], right, exercise))
        else:
            text = fill("Your function leaves its argument {0} unchanged, where it has to be changed in place.", name)
            differences.append(Difference(subject, unchanged, right, text))
    return differences


def _gradient_differences(got: Outcome, expected: Outcome, exercise: Exercise) -> list[Difference]:
    differences = []
    for name in exercise.gradient_of:
        gradients = got.gradients.get(name), expected.gradients.get(name)
        if not same_gradient(*gradients, exercise.tolerance):
            is_cut_off = expected.has_gradient and not got.has_gradient
            text = GRADIENT_CUT_OFF if is_cut_off else _about_gradient(name, *gradients, exercise)
            gradient, right = (OtherObject("no gradient") if value is None else value for value in gradients)
            fault = Fault.DETACHED if is_cut_off else Fault.NONE
            differences.append(Difference(fill("the gradient of {0}", name), gradient, right, text, fault))
    return differences


def _about_gradient(name: str, got: Any, expected: Any, exercise: Exercise) -> str:
    start = "The value is right, but the gradient is not."
    if isinstance(got, Tensor) and got.isnan().any():
        return Phrase(start, " ", fill("NaN arrives at {0}.", name))
    if no_gradient(expected):
        reason = "it should be stopped" if expected is None else "it is zero"
        return Phrase(start, " ", fill("A gradient arrives at {0}, where {1}.", name, reason))
    if no_gradient(got):
        return Phrase(start, " ", fill("No gradient arrives at {0}: it is zero everywhere.", name))
    if isinstance(got, Tensor) and isinstance(expected, Tensor) and got.shape == expected.shape:
        sentence = relation_of_tensors(got, expected, exercise.tolerance)
        return Phrase(start, " ", fill("The gradient of {0}: {1}", name, Phrase(sentence))) if sentence else start
    return start


def _as_dict(value: Any) -> dict | None:
    """Return a dictionary, or a list as a dictionary by index; None for a value without parts."""
    if isinstance(value, list):
        return dict(enumerate(value))
    return value if isinstance(value, dict) else None


def _kind_name(value: Any) -> str:
    """Return the words for the kind of a value, such as "a number"."""
    if isinstance(value, OtherObject):
        return value.description
    kinds = {bool: "True or False", int: "a number", float: "a number", str: "a text", list: "a list or tuple"}
    kinds |= {dict: "a dictionary", Tensor: "a tensor"}
    return "None" if value is None else kinds[type(value)]


def _yes_or_no(answer: bool) -> str:
    return "yes" if answer else "no"


def _capitalised(text: str) -> str:
    if not text.startswith("the "):
        return text
    if isinstance(text, Phrase):
        (message,) = text.pieces
        if isinstance(message, str):
            return Phrase(_capitalised(message))
        return Phrase(message._replace(text=_capitalised(message.text)))
    return f"The {text[4:]}"


def relation_of_tensors(got: Tensor, expected: Tensor, tolerance: float) -> str:
    """Return a sentence on how two tensors of one shape and dtype differ; "" if they have no simple relation."""
    if got.dtype == torch.bool and got.numel() > 1 and torch.equal(got, ~expected):
        return "True and False are exchanged everywhere."
    is_wrong, is_float = ~close_entries(got, expected, tolerance), got.is_floating_point()
    got, expected = got.double(), expected.double()
    for word, test in (("NaN", torch.isnan), ("infinity", torch.isinf)):
        if (test(got) & ~test(expected)).any():
            return fill("There is {0} where a number is expected.", word)
        if (test(expected) & ~test(got)).any():
            return fill("There is a number where {0} is expected.", word)
    if is_float and (got - expected).abs().max() <= RELATION_TOLERANCE * expected.abs().max():
        return SLIGHTLY
    if is_float and not expected.any() and got.abs().max() <= RELATION_TOLERANCE:
        return TINY
    right = fill("{0} of {1} entries are right.", int((~is_wrong).sum()), is_wrong.numel())
    partly_right = "" if is_wrong.all() else Phrase(right, " ", _positions(is_wrong))
    if not is_float:
        return partly_right
    if len(got.unique()) == len(expected.unique()) == 1:  # equal entries tell no more than a single number
        got, expected = got.flatten()[:1], expected.flatten()[:1]
    return relation_everywhere(got, expected) or partly_right


def _positions(is_wrong: Tensor) -> str:
    """Return a sentence on the positions of wrong entries: the index that they share along an axis, or the first."""
    indices = is_wrong.nonzero()
    for axis in range(is_wrong.ndim):
        if is_wrong.shape[axis] > 1 and len(indices) > 1 and len(indices[:, axis].unique()) == 1:
            return fill("All wrong ones have index {0} along axis {1}.", int(indices[0, axis]), axis)
    return fill("The first wrong one is at {0}.", indices[0].tolist())


def relation_everywhere(got: Tensor, expected: Tensor) -> str:
    """Return a sentence on a simple relation that holds for all numbers of two tensors; "" if there is none."""
    if not (got.isfinite() & expected.isfinite()).all():
        return ""
    return next(_operations(got, expected), "")


def _operations(got: Tensor, expected: Tensor) -> Iterator[str]:
    """Yield the sentences that hold for all numbers.

    Factors and offsets are skipped for a single number, because it always has one.
    """
    if not got.any():
        yield ZERO if got.numel() == 1 else "Everything is zero: do the arguments enter it, or do all terms cancel?"
    if _close(got, -expected):
        yield "The sign is flipped."
    if got.numel() > 1:
        constant, offset = constant_factor(got, expected), (got - expected).flatten()
        if constant is not None and abs(constant - 1) > 1e-3:
            yield fill("It is off by a constant factor: {0}.", _say_factor(constant))
        if abs(offset[0]) > RELATION_TOLERANCE and _close(offset, offset[:1].expand_as(offset)):
            yield fill("It is off by a constant: {0} everywhere.", f"{offset[0]:+.4g}")


def constant_factor(got: Tensor, expected: Tensor) -> float | None:
    """Return the factor c with got = c * expected for every number; None if there is none, or if it is 0."""
    largest = expected.abs().argmax()
    factor = float(got.flatten()[largest] / expected.flatten()[largest])
    if not math.isfinite(factor) or factor == 0:
        return None
    noise = 1e-13 * float(got.abs().max())
    return factor if torch.isclose(got, factor * expected, rtol=RELATION_TOLERANCE, atol=noise).all() else None


def _say_factor(factor: float) -> str:
    simple = Fraction(factor).limit_denominator(16)
    exact = simple and math.isclose(simple, factor, rel_tol=2 * RELATION_TOLERANCE)
    return fill("{0} times what is expected", simple if exact else format(factor, ".4g"))


def _close(a: Tensor, b: Tensor) -> bool:
    return bool(close_entries(a, b, RELATION_TOLERANCE).all())
