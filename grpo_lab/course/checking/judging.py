"""Compare the outcomes of an answer with the reference's, and return a verdict that explains what is not right yet.

No verdict contains source code of the reference.
"""

from collections.abc import Sequence

from grpo_lab.base.language import Phrase, counted, fill
from grpo_lab.course.checking.attempt import Attempt
from grpo_lab.course.checking.case_parts import full_parts, printed_parts, short_parts
from grpo_lab.course.checking.cell_history import Mismatch
from grpo_lab.course.checking.explanation import explain
from grpo_lab.course.checking.mistakes import unrepaired_stub
from grpo_lab.course.checking.outcome import Outcome
from grpo_lab.course.checking.points import property_shares, rescaled_share
from grpo_lab.course.checking.status import Fault, Status
from grpo_lab.course.checking.verdict import Verdict
from grpo_lab.course.checking.verdict_parts import Part, PartKind
from grpo_lab.course.exercise import Exercise, Mistake
from grpo_lab.course.stub import LIBRARY_GONE
from grpo_lab.formulas.source import read_equations

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
# The sentences about a function in memory that is not the one on the page, by `Mismatch.kind`.
MISMATCHES = {
    "failed": "{name} in memory is not the function of your page: its cell was run again{failed_run} and failed, so "
    "the one in memory is older{run}. Run the cell until it raises nothing, then check again.",
    "edited": "{name} in memory is not the function of your page: the cell was changed after it ran{run}, as the "
    "saved notebook shows. Run the cell, then check again.",
}
PROPERTY_NAMES = {"values": "values", "gradients": "gradients", "stability": "large and extreme inputs"}


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
    return _wrong_verdict(attempt, shares) if attempt.failing else _right_verdict(attempt, shares)


def mismatch_verdict(exercise: Exercise, mismatch: Mismatch) -> Verdict:
    """Return the verdict on a function in memory that is not the one of the notebook page."""
    counts = {"run": mismatch.count, "failed_run": mismatch.failed_count}
    runs = {key: "" if count is None else Phrase(" ", fill("(In [{0}])", count)) for key, count in counts.items()}
    sentence = fill(MISMATCHES[mismatch.kind], name=f"`{mismatch.name}`", **runs)
    return _make_verdict(exercise, Status.FORM, [Part(PartKind.SENTENCES, sentence)], fault=Fault.STALE)


def fault_verdict(exercise: Exercise, fault: Fault, message: str = "", **fields) -> Verdict:
    """Return the verdict on code that cannot be judged by its numbers.

    Args:
        fault: The fault, a key of `FORM_FAULTS`.
        message: The details of a signature that differs.
        fields: More fields of the verdict.
    """
    sentence = fill(FORM_FAULTS[fault], message=Phrase(message))
    return _make_verdict(exercise, Status.FORM, [Part(PartKind.SENTENCES, sentence)], fault=fault, **fields)


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
        return Status.FORM
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
    num_right = num_cases - len(attempt.failing)
    marks = [fill("{0} ✓" if share == 1 else "{0} ✗", PROPERTY_NAMES[name]) for name, share in shares.items()]
    return Part(PartKind.SENTENCES, fill("{0} of {1} right: {2}.", num_right, counted(num_cases, "case"), marks))


def _make_verdict(exercise: Exercise, status: Status, parts: list[Part], **fields) -> Verdict:
    return Verdict(exercise.name, status, tuple(parts), max_points=exercise.points, **fields)
