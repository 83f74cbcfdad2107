"""Judge what a function did: compare it with the reference, and say what is not right yet, and why.

No verdict contains source of the reference.
"""

from collections.abc import Sequence
from functools import cache

from grpo_lab.base.language import Phrase, counted, fill
from grpo_lab.course.checking.case_parts import full_parts, printed_parts, short_parts
from grpo_lab.course.checking.cells import Mismatch
from grpo_lab.course.checking.compare import equal, idle_share, properties
from grpo_lab.course.checking.explanation import explain
from grpo_lab.course.checking.mistakes import unrepaired, wrong_outcome
from grpo_lab.course.checking.outcome import Outcome, expected_outcomes, outcome_of
from grpo_lab.course.checking.verdict import Part, Verdict
from grpo_lab.course.exercise import Exercise, Misconception
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
        folded = tuple(printed_parts(first))
        return fault_verdict(exercise, first.fault, first.message, folded=folded, properties=shares)
    if len(outcomes) != len(expected):
        raise ValueError(f"outcomes has {len(outcomes)} entries; expected {len(expected)}, one per case")
    if any(o.error == "NotImplementedError" and o.message == LIBRARY_GONE for o in outcomes):
        return fault_verdict(exercise, "library")
    if all(outcome.error == "NotImplementedError" for outcome in outcomes):
        text = fill("Write its body, then check again. hint({0}) helps you to start.", repr(exercise.name))
        return _make_verdict(exercise, "not started", [Part("say", text)])
    failing = [index for index, outcome in enumerate(outcomes) if not equal(outcome, expected[index], exercise)]
    if failing:
        return _wrong_verdict(exercise, outcomes, failing, seed, shares)
    return _right_verdict(exercise, outcomes, shares)


def mismatch_verdict(exercise: Exercise, mismatch: Mismatch) -> Verdict:
    """The verdict on a function that is not the one of the page."""
    counts = {"run": mismatch.count, "failed_run": mismatch.other_count}
    runs = {key: "" if count is None else Phrase(" ", fill("(In [{0}])", count)) for key, count in counts.items()}
    sentence = fill(FAULTS[mismatch.kind], name=f"`{mismatch.name}`", **runs)
    return _make_verdict(exercise, "form", [Part("say", sentence)], fault="stale")


def fault_verdict(exercise: Exercise, fault: str, message: str = "", **fields) -> Verdict:
    """The verdict on code that is not judged by its numbers."""
    sentence = fill(FAULTS[fault], message=Phrase(message))
    return _make_verdict(exercise, "form", [Part("say", sentence)], fault=fault, **fields)


def _right_verdict(exercise: Exercise, outcomes: Sequence[Outcome], shares: dict[str, float]) -> Verdict:
    gradients = ", ".join(f"`{name}`" for name in exercise.gradient_of)
    subject, cases = "what it does" if exercise.observe else "values", counted(len(outcomes), "case")
    checked = fill("Checked: {0} on {1}.", subject, cases)
    if gradients:
        checked = fill("Checked: {0} on {1}, gradients of {2}.", subject, cases, gradients)
    folded = tuple(printed_parts(outcomes[0]))
    return _make_verdict(
        exercise, "right", [Part("say", Phrase("Well done. ", checked))], folded=folded, properties=shares
    )


def _wrong_verdict(
    exercise: Exercise, outcomes: Sequence[Outcome], failing: list[int], seed: int, shares: dict
) -> Verdict:
    index, difference, mistakes, sentences = explain(exercise, outcomes, failing, seed, shares)
    has_fault_of_form = bool(difference.fault) and difference.fault != "error" and not mistakes
    folded = [*sentences[1:], *full_parts(exercise, outcomes[index], difference, index, seed)]
    folded += _equation_parts(exercise, mistakes[0]) if mistakes and not exercise.variant else []
    unchanged = unrepaired(exercise) in mistakes
    right_values = shares["values"] == 1
    if exercise.variant and mistakes:  # the lesson's function earns nothing, however near the class's formula is to it
        right_values, shares = False, shares | {"values": 0.0}
    elif not right_values:
        shares |= {"values": _share_beyond_free(exercise, shares["values"], seed)}
    return _make_verdict(
        exercise,
        _status(unchanged, right_values, has_fault_of_form),
        [sentences[0], *short_parts(exercise, outcomes[index], difference, index, seed, sentences[0].text)],
        folded=(*folded, _score_part(outcomes, failing, shares)),
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


def _share_beyond_free(exercise: Exercise, share: float, seed: int) -> float:
    """The share earned beyond what the stub, a constant or the lesson's function gets.

    The stub counts in a repair, and the lesson's function where a class has another formula.
    """
    free_share = _free_share(exercise, seed)
    return max(share - free_share, 0) / (1 - free_share) if free_share < 1 else 0.0


@cache
def _free_share(exercise: Exercise, seed: int) -> float:
    """The share of values that are right without any work, as `_share_beyond_free` lists them."""
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


def _equation_parts(exercise: Exercise, mistake: Misconception) -> list[Part]:
    """The equation that the mistake breaks: its own, that of the last line that it changes, or the last of all."""
    equations = read_equations(exercise.function)
    changed = [equation for equation in equations if equation.tag in mistake.lines]
    own = [equation for equation in equations if equation.tag == mistake.equation]
    for candidates in (own, changed, equations):
        if candidates:
            return [Part("equation", candidates[-1].latex, candidates[-1].tag)]
    return []


def _score_part(outcomes: Sequence[Outcome], failing: list[int], shares: dict[str, float]) -> Part:
    right = len(outcomes) - len(failing)
    marks = [fill("{0} ✓" if share == 1 else "{0} ✗", PROPERTY_NAMES[name]) for name, share in shares.items()]
    return Part("say", fill("{0} of {1} right: {2}.", right, counted(len(outcomes), "case"), marks))


def _make_verdict(exercise: Exercise, status: str, parts: list[Part], **fields) -> Verdict:
    return Verdict(exercise.name, status, tuple(parts), full=exercise.points, **fields)
