"""Judge what a function did: compare it with the reference, and say what is not right yet, and why.

No verdict contains source of the reference.
"""

import math
import textwrap
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grpo_lab.base.language import Phrase, counted, fill
from grpo_lab.course.checking.cells import Mismatch
from grpo_lab.course.checking.compare import equal, equal_values, idle_share, is_number, properties
from grpo_lab.course.checking.difference import Difference, first_difference
from grpo_lab.course.checking.mistakes import choices, likely, matching, unrepaired, wrong_outcome
from grpo_lab.course.checking.outcome import Outcome, expected_outcomes, inputs, outcome_of
from grpo_lab.course.checking.plain_data import Other
from grpo_lab.course.checking.relations import LOOSE, everywhere, factor
from grpo_lab.course.checking.shown import arguments_shown, brief, brief_arguments, brief_pair, lines
from grpo_lab.course.checking.verdict import WIDTH, Part, Row, Verdict, rows_part
from grpo_lab.course.exercise import TESTS, Exercise, Misconception
from grpo_lab.course.stub import LIBRARY_GONE
from grpo_lab.formulas.source import read_equations

# What is said about code that cannot be judged by its numbers.
FAULTS = {
    "signature": "Your function has other arguments than the stub: {message}. Copy the first lines of the stub, and "
    "leave them as they are.",
    "endless": "Your function did not come to an end, or printed without end, and was stopped. Is there a loop whose "
    "condition never changes?",
    "exit": "Your function ends the program (exit, quit, sys.exit or an interrupt of its own). Return a value instead.",
    "failed": "{name} in memory is not the function of your page: its cell was run again{failed_run} and failed, so "
    "the one in memory is older{run}. Run the cell until it raises nothing, then check again.",
    "edited": "{name} in memory is not the function of your page: the cell was changed after it ran{run}, as the "
    "saved notebook shows. Run the cell, then check again.",
    "library": "This is the library's own function, or calls it. It is for you to write: where your work is marked, "
    "the library does not have it.",
}
PROPERTY_NAMES = {"values": "values", "gradients": "gradients", "stability": "large and extreme inputs"}
LABEL_WIDTH = 10  # of a line of values
HARDER = "Right on ordinary inputs; this one is large or extreme. "


def judge(exercise: Exercise, outcomes: Sequence[Outcome], seed: int = 0) -> Verdict:
    """The verdict on outcomes of `run_student`, from this process or from another one.

    Raises:
        ValueError: if there is not one outcome for each case, and none of them was stopped.
    """
    expected = expected_outcomes(exercise, seed)
    shares = properties(exercise, outcomes[: len(expected)], expected)
    stopped = [outcome for outcome in outcomes if outcome.fault]
    if stopped:
        first = stopped[0]
        folded = tuple(_printed_parts(first))
        return fault_verdict(exercise, first.fault, first.message, folded=folded, properties=shares)
    if len(outcomes) != len(expected):
        raise ValueError(f"outcomes has {len(outcomes)} entries; expected {len(expected)}, one per case")
    if any(o.error == "NotImplementedError" and o.message == LIBRARY_GONE for o in outcomes):
        return fault_verdict(exercise, "library")
    if all(outcome.error == "NotImplementedError" for outcome in outcomes):
        text = fill("Write its body, then check again. hint({0}) helps you to start.", repr(exercise.name))
        return _verdict(exercise, "not started", [Part("say", text)])
    failing = [index for index, got in enumerate(outcomes) if not equal(got, expected[index], exercise)]
    return _wrong(exercise, outcomes, failing, seed, shares) if failing else _right(exercise, outcomes, shares)


def mismatch_verdict(exercise: Exercise, mismatch: Mismatch) -> Verdict:
    """The verdict on a function that is not the one of the page."""
    counts = {"run": mismatch.count, "failed_run": mismatch.other_count}
    runs = {key: "" if count is None else Phrase(" ", fill("(In [{0}])", count)) for key, count in counts.items()}
    sentence = fill(FAULTS[mismatch.kind], name=f"`{mismatch.name}`", **runs)
    return _verdict(exercise, "form", [Part("say", sentence)], fault="stale")


def fault_verdict(exercise: Exercise, fault: str, message: str = "", **fields) -> Verdict:
    """The verdict on code that is not judged by its numbers."""
    sentence = fill(FAULTS[fault], message=Phrase(message))
    return _verdict(exercise, "form", [Part("say", sentence)], fault=fault, **fields)


def _right(exercise: Exercise, outcomes: Sequence[Outcome], shares: dict[str, float]) -> Verdict:
    gradients = ", ".join(f"`{name}`" for name in exercise.gradient_of)
    subject, cases = "what it does" if exercise.observe else "values", counted(len(outcomes), "case")
    checked = fill("Checked: {0} on {1}.", subject, cases)
    if gradients:
        checked = fill("Checked: {0} on {1}, gradients of {2}.", subject, cases, gradients)
    folded = tuple(_printed_parts(outcomes[0]))
    return _verdict(exercise, "right", [Part("say", Phrase("Well done. ", checked))], folded=folded, properties=shares)


def _wrong(exercise: Exercise, outcomes: Sequence[Outcome], failing: list[int], seed: int, shares: dict) -> Verdict:
    index, difference, mistakes, sentences = _explained(exercise, outcomes, failing, seed, shares)
    has_fault_of_form = bool(difference.fault) and difference.fault != "error" and not mistakes
    folded = [*sentences[1:], *_full_parts(exercise, outcomes[index], difference, index, seed)]
    folded += _equation(exercise, mistakes[0]) if mistakes and not exercise.variant else []
    unchanged = unrepaired(exercise) in mistakes
    right_values = shares["values"] == 1
    if exercise.variant and mistakes:  # the lesson's function earns nothing, however near the class's formula is to it
        right_values, shares = False, shares | {"values": 0.0}
    elif not right_values:
        shares |= {"values": _earned(exercise, shares["values"], seed)}
    return _verdict(
        exercise,
        _status(unchanged, right_values, has_fault_of_form),
        [sentences[0], *_short_parts(exercise, outcomes[index], difference, index, seed, sentences[0].text)],
        folded=(*folded, _score(outcomes, failing, shares)),
        fault=difference.fault if has_fault_of_form else "",
        misconceptions=() if unchanged else tuple(mistake.name for mistake in mistakes),
        properties=shares,
    )


def _status(unchanged: bool, right_values: bool, has_fault_of_form: bool) -> str:
    if unchanged:
        return "not started"
    if right_values:
        return "partly"
    if has_fault_of_form:
        return "form"
    return "wrong"


def _earned(exercise: Exercise, share: float, seed: int) -> float:
    """The share earned beyond what the stub, a constant or the lesson's function gets.

    The stub counts in a repair, and the lesson's function where a class has another formula.
    """
    free_share = _free_share(exercise, seed)
    return max(share - free_share, 0) / (1 - free_share) if free_share < 1 else 0.0


@cache
def _free_share(exercise: Exercise, seed: int) -> float:
    """The share of values that are right without any work, as `_earned` lists them."""
    expected = expected_outcomes(exercise, seed)
    indices = range(len(expected))
    initial = unrepaired(exercise)
    if initial is None and exercise.variant:
        initial = next(iter(exercise.misconceptions.values()))  # the lesson's function
    if initial is not None:
        initial_outcomes = [wrong_outcome(exercise, initial, index, seed) for index in indices]
        return properties(exercise, initial_outcomes, expected)["values"]
    nothing = [outcome_of(lambda *args, **kwargs: None, exercise, index, seed) for index in indices]
    return idle_share(exercise, expected, nothing)


class _Explanation(NamedTuple):
    """The case that is shown, its difference, the mistakes that explain it, and sentences, the first said at once."""

    index: int
    difference: Difference
    mistakes: list[Misconception]
    sentences: list[Part]


def _explained(exercise: Exercise, outcomes, failing: list[int], seed: int, shares: dict) -> _Explanation:
    """Explain by one mistake that fits every case, else by a relation of all numbers, else by several mistakes."""
    expected = expected_outcomes(exercise, seed)
    index = _simplest(exercise, outcomes, expected, failing)
    difference = first_difference(outcomes[index], exercise, index, seed)
    mistakes = matching(exercise, outcomes, seed)
    if mistakes:
        return _Explanation(index, difference, mistakes, _mistake_sentences(mistakes, True, difference))
    relation = ""
    if not difference.fault and shares["values"] < 1:
        relation = _relation_of_all_cases(exercise, outcomes, expected, difference.subject, seed)
    if not relation and difference.fault in ("", "kind", "shape"):
        cases_by_mistake = likely(exercise, outcomes, seed)
        if cases_by_mistake:
            mistakes = list(cases_by_mistake)
            index = cases_by_mistake[mistakes[0]][0]  # a case that shows the mistake that is named first
            difference = first_difference(outcomes[index], exercise, index, seed)
            return _Explanation(index, difference, mistakes, _mistake_sentences(mistakes, False, difference))
    finding = relation or difference.finding
    where = "" if difference.fault else _where_wrong(exercise, failing)
    if where:
        pairs = _compared_pairs(difference.subject, outcomes, expected, failing)
        if not relation and len(pairs) > 1 and all(_are_numbers(*pair) for pair in pairs):
            finding = everywhere(*_joined(_as_vectors(pair) for pair in pairs)) or finding
        finding = Phrase(where, " ", finding) if finding else where
    return _Explanation(index, difference, [], [_number_sentence(exercise.cases[index].tests, difference, finding)])


def _compared_pairs(
    subject: str, outcomes: Sequence[Outcome], expected: Sequence[Outcome], indices: Sequence[int]
) -> list[tuple[Any, Any]]:
    """The result of each of these cases, and what is expected; of the observed part `subject`, where that is none."""
    return [(_compared_value(outcomes[index], subject), _compared_value(expected[index], subject)) for index in indices]


def _joined(pairs: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """All numbers of the results, and all that are expected, each as one vector."""
    got, right = zip(*pairs, strict=True)
    return torch.cat(got), torch.cat(right)


def _where_wrong(exercise: Exercise, failing: Sequence[int]) -> str:
    """Say for which choices of an argument the result is wrong, if it is for all of their cases, and for no other."""
    ordinary = [index for index, case in enumerate(exercise.cases) if case.tests == "values"]
    wrong = set(failing).intersection(ordinary)
    for name, values in choices(exercise).items():
        wrong_values = dict.fromkeys(values[index] for index in sorted(wrong))
        with_these_values = {index for index in ordinary if values[index] in wrong_values}
        if wrong and wrong == with_these_values != set(ordinary):
            shown = [repr(value) for value in wrong_values]
            listed = fill("{0} or {1}", *shown) if len(shown) == 2 else shown
            return fill("It is wrong where `{0}` is {1}, and right elsewhere.", name, listed)
    return ""


def _simplest(exercise: Exercise, outcomes, expected, failing: list[int]) -> int:
    """The failing case to show: ordinary before extreme; then wrong values before wrong gradients, small ones first."""
    only_gradient = {index: equal_values(outcomes[index], expected[index], exercise) for index in failing}
    return min(failing, key=lambda index: (TESTS.index(exercise.cases[index].tests), only_gradient[index]))


def _relation_of_all_cases(
    exercise: Exercise, outcomes: Sequence[Outcome], expected: Sequence[Outcome], subject: str, seed: int
) -> str:
    """A sentence on the relation of all numbers: one that is off by a factor says nothing, all of them say much.

    subject: "the result", or what is observed in its place.
    """
    ordinary = [index for index, case in enumerate(exercise.cases) if case.tests == "values"]
    pairs = _compared_pairs(subject, outcomes, expected, ordinary)
    own_leaves = {leaf for got, _ in pairs for leaf in _leaves(got)}
    expected_leaves = {leaf for _, right in pairs for leaf in _leaves(right)}
    if len(own_leaves) == 1 < len(expected_leaves) and None not in own_leaves | expected_leaves:
        (only,) = own_leaves
        if only != 0 or isinstance(only, bool):
            text = "Your result is {0} everywhere, for every input: which of the arguments decides it?"
            return fill(text, str(only))
    if not all(_are_numbers(*pair) for pair in pairs):
        return ""
    vectors = [_as_vectors(pair) for pair in pairs]
    return everywhere(*_joined(vectors)) or _size_relation(exercise, vectors, seed)


def _size_relation(exercise: Exercise, vectors: Sequence[tuple[Tensor, Tensor]], seed: int) -> str:
    """Say which axis of which argument has the size by which the result is too large or too small in every case."""
    indices = [index for index, case in enumerate(exercise.cases) if case.tests == "values"]
    factors: list[float] = []
    arguments: list[dict[str, Any]] = []
    for index, (got, right) in zip(indices, vectors, strict=True):
        if not got.any() and not right.any():  # two results of zeros have no factor, and contradict none
            continue
        constant = factor(got, right) if right.any() and got.isfinite().all() else None
        if constant is None:
            return ""
        factors.append(constant)
        arguments.append(inputs(exercise, index, seed)[0].arguments)
    if len(set(factors)) < 2:
        return ""
    for name, first in arguments[0].items():
        tensors = [values.get(name) for values in arguments]
        if not isinstance(first, Tensor) or not all(isinstance(t, Tensor) and t.ndim == first.ndim for t in tensors):
            continue
        for axis in range(first.ndim):
            sizes = [tensor.shape[axis] for tensor in tensors]
            if _all_close([constant * size for constant, size in zip(factors, sizes, strict=True)], [1] * len(sizes)):
                text = "Your result is divided by the size of axis {0} of `{1}`: is a mean taken where a sum is meant?"
                return fill(text, axis, name)
            if _all_close(factors, sizes):
                text = (
                    "Your result is multiplied by the size of axis {0} of `{1}`: is a sum taken where a mean is meant?"
                )
                return fill(text, axis, name)
    return ""


def _all_close(numbers: Sequence[float], expected: Sequence[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=LOOSE) for a, b in zip(numbers, expected, strict=True))


def _compared_value(outcome: Outcome, subject: str) -> Any:
    if subject == "the result" and outcome.observed is None:
        return outcome.value
    return (outcome.observed or {}).get(subject)


def _leaves(value: Any) -> set:
    """The different numbers, truth values and texts in a result; None for what else there is."""
    if isinstance(value, Tensor):
        return set(value.flatten().tolist())
    if isinstance(value, list):
        return {leaf for part in value for leaf in _leaves(part)}
    return {value if isinstance(value, bool | int | float | str) else None}


def _as_vectors(pair: tuple[Any, Any]) -> tuple[Tensor, Tensor]:
    got, right = pair
    return torch.as_tensor(got).double().flatten(), torch.as_tensor(right).double().flatten()


def _are_numbers(got: Any, expected: Any) -> bool:
    if isinstance(got, Tensor) and isinstance(expected, Tensor):
        return got.shape == expected.shape and torch.bool not in (got.dtype, expected.dtype)
    return is_number(got) and is_number(expected)


def _mistake_sentences(mistakes: list[Misconception], certain: bool, difference: Difference) -> list[Part]:
    """Sentences about the mistakes: careful ones, where they explain only some of the cases."""
    preamble = "On some inputs the result is as with this mistake: "
    if certain:
        preamble = ""
    elif difference.subject.startswith("the gradient of"):
        preamble = fill("The value is right here, but {0} is as with this mistake:", difference.subject) + " "
    elif len(mistakes) > 1:
        preamble = "There seems to be more than one mistake. First: "
    return [
        Part("say", Phrase("And then: " if index else preamble, mistake.says)) for index, mistake in enumerate(mistakes)
    ]


def _number_sentence(tests: str, difference: Difference, finding: str) -> Part:
    preamble = HARDER if tests == "stability" and difference.fault in ("", "error") else ""
    sentence = fill("Something else is expected for {0}: compare the lines below.", difference.subject)
    return Part("say", Phrase(preamble, finding or sentence))


def _short_parts(
    exercise: Exercise, outcome: Outcome, difference: Difference, index: int, seed: int, sentence: str
) -> list[Part]:
    """The first input that shows it, and both results, in a line each; the input in two if the sentence is short."""
    width, label = WIDTH - 4 - LABEL_WIDTH, exercise.cases[index].label
    input_width = 2 * width - 20 if len(textwrap.wrap(sentence, WIDTH)) <= 3 else width
    text = brief_arguments(_arguments(exercise, index, seed), input_width)
    case = label if len(text) + len(label) < width else ""
    first, *continuation = textwrap.wrap(text, width) or [""]
    rows = [_row("input", first, case=case), *(_row("", line) for line in continuation)]
    if outcome.trace:
        rows.append(_row("where", brief(Other(outcome.trace.splitlines()[-1]), width)))
    if difference.fault == "error":
        return [rows_part("values", rows)]
    subject = "" if difference.subject == "the result" else difference.subject.removeprefix("the ")
    yours, expected = brief_pair(difference.got, difference.expected, width - len(subject and f"{subject}: "))
    rows.append(_row("yours", yours, subject))
    return [rows_part("values", rows), rows_part("expected", [_row("expected", expected, subject)])]


def _row(label: str, value: str, subject: str = "", case: str = "") -> Row:
    """A line of the short parts, in which all values begin in one column."""
    return Row(value, label, " " * (LABEL_WIDTH - len(label)), subject, case)


def _rows_in_full(label: str, value: Any) -> list[Row]:
    """A value in full, as `lines` shows it; those of its lines that begin with its name begin with the label."""
    rows = []
    for line in lines("", value):
        if line.startswith(" = "):
            rows.append(Row(line.removeprefix(" = "), label, " = "))
        else:
            goes_on = line.startswith(("    ", "…"))
            rows.append(Row(line, "" if goes_on else label))
    return rows


def _full_parts(exercise: Exercise, outcome: Outcome, difference: Difference, index: int, seed: int) -> list[Part]:
    arguments = _arguments(exercise, index, seed)
    text = "\n".join(line for name, value in arguments.items() for line in lines(name, value))
    label = exercise.cases[index].label
    parts = [Part("values", text, fill("Input ({0}):", label) if label else "Input:")]
    if outcome.trace:
        parts.append(Part("values", outcome.trace, "Where it happens, in your code:"))
    if "\n" in outcome.message:
        parts.append(Part("values", outcome.message, f"{outcome.error}:"))
    title = f"{difference.subject[:1].upper()}{difference.subject[1:]}"
    parts.append(rows_part("values", _rows_in_full("yours", difference.got), f"{title}:"))
    parts.append(rows_part("expected", _rows_in_full("expected", difference.expected), "What is expected:"))
    if difference.subject.startswith("the gradient of"):
        parts.append(Part("say", "A gradient is that of the result, weighted with random numbers that stay the same."))
    return parts + _printed_parts(outcome)


def _score(outcomes: Sequence[Outcome], failing: list[int], shares: dict[str, float]) -> Part:
    right = len(outcomes) - len(failing)
    marks = [fill("{0} ✓" if share == 1 else "{0} ✗", PROPERTY_NAMES[name]) for name, share in shares.items()]
    return Part("say", fill("{0} of {1} right: {2}.", right, counted(len(outcomes), "case"), marks))


def _arguments(exercise: Exercise, index: int, seed: int) -> dict:
    return arguments_shown(inputs(exercise, index, seed)[0])


def _equation(exercise: Exercise, mistake: Misconception) -> list[Part]:
    """The equation that the mistake breaks: its own, that of the last line that it changes, or the last of all."""
    equations = read_equations(exercise.function)
    changed = [equation for equation in equations if equation.tag in mistake.lines]
    own = [equation for equation in equations if equation.tag == mistake.equation]
    for candidates in (own, changed, equations):
        if candidates:
            return [Part("equation", candidates[-1].latex, candidates[-1].tag)]
    return []


def _printed_parts(outcome: Outcome) -> list[Part]:
    return [Part("values", outcome.printed, "Your function printed:")] if outcome.printed.strip() else []


def _verdict(exercise: Exercise, status: str, parts: list[Part], **fields) -> Verdict:
    return Verdict(exercise.name, status, tuple(parts), full=exercise.points, **fields)
