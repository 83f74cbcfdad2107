"""The parts of a verdict that show a case: its input, the result and what is expected, in short and in full."""

import textwrap
from typing import Any

from grpo_lab.base.language import fill
from grpo_lab.course.checking.attempt import Attempt
from grpo_lab.course.checking.difference import Difference
from grpo_lab.course.checking.outcome import Outcome
from grpo_lab.course.checking.plain_data import OtherObject
from grpo_lab.course.checking.run_cases import case_arguments
from grpo_lab.course.checking.status import Fault
from grpo_lab.course.checking.value_text import (
    arguments_shown,
    brief_arguments,
    brief_pair,
    brief_text,
    full_text_lines,
)
from grpo_lab.course.checking.verdict_parts import WIDTH, Part, PartKind, ValueLine, lines_part

LABEL_WIDTH = 10  # columns of the label at the beginning of a line of values


def short_parts(attempt: Attempt, index: int, difference: Difference, sentence: str) -> list[Part]:
    """Return the parts that are shown at once: the input of a case, the result, and what is expected, on one line each.

    The input gets a second line if `sentence`, which is shown above it, is short.

    Args:
        index: The index of the case.
        difference: The difference between the outcome of the case and the expected one.
        sentence: The first sentence of the verdict.
    """
    width, label = WIDTH - 4 - LABEL_WIDTH, attempt.exercise.cases[index].label
    input_width = 2 * width - 20 if len(textwrap.wrap(sentence, WIDTH)) <= 3 else width
    text = brief_arguments(_shown_arguments(attempt, index), input_width)
    case = label if len(text) + len(label) < width else ""
    first, *continuation = textwrap.wrap(text, width) or [""]
    lines = [_value_line("input", first, case=case), *(_value_line("", line) for line in continuation)]
    trace = attempt.outcomes[index].trace
    if trace:
        lines.append(_value_line("where", brief_text(OtherObject(trace.splitlines()[-1]), width)))
    if difference.fault == Fault.ERROR:
        return [lines_part(PartKind.VALUES, lines)]
    subject = "" if difference.subject == "the result" else difference.subject.removeprefix("the ")
    yours, expected = brief_pair(difference.got, difference.expected, width - len(subject and f"{subject}: "))
    lines.append(_value_line("yours", yours, subject))
    return [
        lines_part(PartKind.VALUES, lines),
        lines_part(PartKind.EXPECTED, [_value_line("expected", expected, subject)]),
    ]


def _value_line(label: str, value: str, subject: str = "", case: str = "") -> ValueLine:
    """Return a line of the short parts; all of their values begin in the same column."""
    return ValueLine(value, label, " " * (LABEL_WIDTH - len(label)), subject, case)


def full_parts(attempt: Attempt, index: int, difference: Difference) -> list[Part]:
    """Return the parts that are shown folded: input, error, result and what is expected in full.

    The arguments are those of `short_parts`.
    """
    outcome, arguments = attempt.outcomes[index], _shown_arguments(attempt, index)
    text = "\n".join(line for name, value in arguments.items() for line in full_text_lines(name, value))
    label = attempt.exercise.cases[index].label
    parts = [Part(PartKind.VALUES, text, fill("Input ({0}):", label) if label else "Input:")]
    if outcome.trace:
        parts.append(Part(PartKind.VALUES, outcome.trace, "Where it happens, in your code:"))
    if "\n" in outcome.message:
        parts.append(Part(PartKind.VALUES, outcome.message, f"{outcome.error}:"))
    title = f"{difference.subject[:1].upper()}{difference.subject[1:]}"
    parts.append(lines_part(PartKind.VALUES, _full_value_lines("yours", difference.got), f"{title}:"))
    parts.append(lines_part(PartKind.EXPECTED, _full_value_lines("expected", difference.expected), "What is expected:"))
    if difference.subject.startswith("the gradient of"):
        parts.append(
            Part(PartKind.SENTENCES, "The gradients are those of the result times random numbers, which never change.")
        )
    return parts + printed_parts(outcome)


def _full_value_lines(label: str, value: Any) -> list[ValueLine]:
    """Return the lines of a value in full, with `label` in place of the value's name."""
    value_lines = []
    for line in full_text_lines("", value):
        if line.startswith(" = "):
            value_lines.append(ValueLine(line.removeprefix(" = "), label, " = "))
        else:
            continues_value = line.startswith(("    ", "…"))
            value_lines.append(ValueLine(line, "" if continues_value else label))
    return value_lines


def _shown_arguments(attempt: Attempt, index: int) -> dict[str, Any]:
    return arguments_shown(case_arguments(attempt.exercise, index, attempt.seed))


def printed_parts(outcome: Outcome) -> list[Part]:
    return [Part(PartKind.VALUES, outcome.printed, "Your function printed:")] if outcome.printed.strip() else []
