"""The verdict of a check, as text and as HTML. A status is shown as a word and a sign, not by colour alone.

A verdict consists of parts: sentences, lines of values, equations. It shows a few lines that a student needs next. The
whole input and all results are in `details`, which a page shows folded.
"""

import html
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from grpo_lab.base.language import _, fill
from grpo_lab.course.checking.difference import Difference
from grpo_lab.course.checking.outcome import RESULT, Fault, OtherObject, Outcome, Status
from grpo_lab.course.checking.points import earned_points
from grpo_lab.course.checking.run_cases import Attempt, case_arguments
from grpo_lab.course.checking.value_text import (
    arguments_shown,
    brief_arguments,
    brief_pair,
    brief_text,
    full_text_lines,
)
from grpo_lab.teaching.messages import display_width

WIDTH = 112  # characters of a line of text
NO_VALUES = ("no gradient", "unchanged")  # words that are shown in place of a value
_EMPHASIS = re.compile(r"(?<![a-zA-Z0-9_*])\*(\w[^*\n]{0,60}?)\*(?![a-zA-Z0-9_*])")  # Chinese puts no space around it
LABEL_WIDTH = 10  # columns of the label at the beginning of a line of values


class StatusStyle(NamedTuple):
    """How a status is shown; the title is translated when it is shown."""

    title: str
    sign: str
    colour: str


STYLES = {
    Status.RIGHT: StatusStyle("right", "✓", "#009E73"),
    Status.PARTLY: StatusStyle("partly right", "◐", "#0072B2"),
    Status.WRONG: StatusStyle("not right yet", "✗", "#D55E00"),
    Status.MALFORMED: StatusStyle("not right yet", "✗", "#D55E00"),
    Status.NOT_STARTED: StatusStyle("not done yet", "○", "#808080"),
}


class PartKind(StrEnum):
    """The content of a part of a verdict. The values are stored in the file of grades."""

    SENTENCES = "sentences"
    VALUES = "values"  # lines in fixed width under a title
    EXPECTED = "expected"  # the same with expected values, which a student's page of a grading leaves out
    EQUATION = "equation"


@dataclass(frozen=True)
class ValueLine:
    """A line of values, such as "yours     gradient of logp: 0.5". Its words are translated when it is shown.

    Attributes:
        value: The text of the value, which is never translated.
        label: "input", "where", "yours" or "expected"; "" in a line that continues a value.
        joint: The text between label and value: spaces up to a column, or " = ".
        subject: The name of what is compared; "" for the result.
        case: The label of the case.
    """

    value: str
    label: str = ""
    joint: str = ""
    subject: str = ""
    case: str = ""

    @property
    def english(self) -> str:
        subject, case = self.subject and f"{self.subject}: ", self.case and f"  ({self.case})"
        return f"{self.label}{self.joint}{subject}{self.value}{case}"

    @property
    def translated(self) -> str:
        """The line in the reader's language, with its value in the same column as in English."""
        label, joint = _(self.label), self.joint
        if joint.isspace():
            joint = " " * max(len(self.label + joint) - display_width(label), 1)
        subject, case = self.subject and _title_in_language(f"{self.subject}: "), self.case and f"  ({_(self.case)})"
        return f"{label}{joint}{subject}{_(self.value) if self.value in NO_VALUES else self.value}{case}"


@dataclass(frozen=True)
class Part:
    """A part of a verdict.

    Attributes:
        kind: What it shows.
        text: The text in English; the LaTeX of an equation.
        title: The title of lines in English.
        rows: The lines of `text`, if their words are to be translated one by one.
        tag: The tag of an equation.
    """

    kind: PartKind
    text: str
    title: str = ""
    rows: tuple[ValueLine, ...] = ()
    tag: str = ""


@dataclass(frozen=True)
class Verdict:
    """The result of a check.

    Attributes:
        exercise: The name of the exercise.
        status: How far the answer is.
        parts: The parts that are shown at once.
        folded_parts: The parts that are shown when a reader unfolds the details.
        fault: What is wrong with the form; `NONE` if nothing is.
        misconceptions: The names of the mistakes that were recognised.
        shares: The share of cases that are right, by property: "values", "gradients", "stability".
        max_points: The points of an answer that is right in all cases.
        judged_cell: A sentence on the notebook cell that defined the function; "" if that is not known.
    """

    exercise: str
    status: Status
    parts: tuple[Part, ...] = ()
    folded_parts: tuple[Part, ...] = ()
    fault: Fault = Fault.NONE
    misconceptions: tuple[str, ...] = ()
    shares: dict[str, float] = field(default_factory=dict)
    max_points: int = 0
    judged_cell: str = ""

    @property
    def message(self) -> str:
        """The sentences that are shown at once."""
        return "\n".join(part.text for part in self.parts if part.kind == PartKind.SENTENCES)

    @property
    def right(self) -> bool:
        return self.status == Status.RIGHT

    @property
    def points(self) -> int | float:
        return earned_points(self.max_points, self.shares)

    @property
    def details(self) -> str:
        """All parts as text: the sentences, the whole input, both results and the equation."""
        return "\n\n".join(part_text(part) for part in (*self.parts, *self.folded_parts))

    def __repr__(self) -> str:
        judged_cell = f"   {_(self.judged_cell)}" if self.judged_cell else ""
        invitation = "   " + _("(more: print(check(...).details))") if self.folded_parts else ""
        return "\n".join([f"{self._head()}{judged_cell}{invitation}", *(part_text(part) for part in self.parts)])

    def _repr_html_(self) -> str:
        # Colours are inherited from the page, so that the box fits a light, a dark and a printed one.
        box = f"border-left:0.4em solid {STYLES[self.status].colour};padding:0.2em 1em;max-width:60em;color:inherit"
        head, body = (html.escape(self._head()), "".join(map(part_html, self.parts)))
        judged_cell = f" <small>{html_of(_(self.judged_cell))}</small>" if self.judged_cell else ""
        body += folded_html(self.folded_parts)
        return f'<div role="status" style="{box}"><p><b>{head}</b>{judged_cell}</p>{body}</div>'

    def _head(self) -> str:
        """Return the first line: the status, and the points of an answer that earns some of them."""
        style = STYLES[self.status]
        status = style.title
        if not self.right and self.points:
            plural = "" if self.max_points == 1 else "s"
            status = fill("{0}, {1} of {2} point{3}", status, f"{self.points:g}", self.max_points, plural)
        return f"{style.sign} {self.exercise}: {_(status)}"


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
    subject = "" if difference.subject == RESULT else difference.subject.removeprefix("the ")
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


def lines_part(kind: PartKind, lines: Sequence[ValueLine], title: str = "") -> Part:
    """Return a part that consists of lines of values."""
    return Part(kind, "\n".join(line.english for line in lines), title, tuple(lines))


def _value_lines(part: Part) -> str:
    """Return the lines of values, with their words in the reader's language."""
    return "\n".join(line.translated for line in part.rows) if part.rows else part.text


def _title_in_language(title: str) -> str:
    """Return a title ("Gradient of logp:") or the subject of a line ("gradient of logp: ") in the reader's language.

    The catalogue has the name of what is compared without a colon, with or without "the".
    """
    subject = title[:1].lower() + title[1:].rstrip(": ")
    for wording in (subject, f"the {subject}"):
        if (translation := _(wording)) != wording:
            return f"{translation}："
    return _(title)


def html_of(text: str) -> str:
    """Return sentences as HTML, with their `code` and *emphasis* as tags."""
    pieces = html.escape(text).split("`")  # every second piece stands between backticks
    pieces[::2] = [_EMPHASIS.sub(r"<em>\1</em>", piece) for piece in pieces[::2]]
    pieces[1::2] = [f"<code>{piece}</code>" for piece in pieces[1::2]]
    return "".join(pieces).replace("\n", "<br>")


def part_html(part: Part) -> str:
    """Return a part as HTML in the reader's language."""
    if part.kind in (PartKind.VALUES, PartKind.EXPECTED):
        block = "margin:0.2em 0 0.8em;overflow-x:auto;background:transparent;color:inherit"
        title = f"<div>{html_of(_title_in_language(part.title))}</div>" if part.title else ""
        return f'{title}<pre style="{block}">{html.escape(_value_lines(part))}</pre>'
    if part.kind == PartKind.EQUATION:
        latex = f"$$ {html.escape(part.text)} \\tag{{{part.tag}}} $$" if part.text else ""
        return f"<div>Eq. ({part.tag})</div>{latex}"
    return f"<p>{html_of(_(part.text))}</p>"


def folded_html(parts: Sequence[Part]) -> str:
    """Return parts as HTML that a reader unfolds; "" without parts."""
    if not parts:
        return ""
    body = "".join(map(part_html, parts))
    return f"<details><summary>{_('The whole input, both results, the equation')}</summary>{body}</details>"


def part_text(part: Part) -> str:
    """Return a part as lines of text in the reader's language."""
    if part.kind in (PartKind.VALUES, PartKind.EXPECTED):
        return "\n".join([_title_in_language(part.title), textwrap.indent(_value_lines(part), "    ")]).lstrip("\n")
    if part.kind == PartKind.EQUATION:
        return f"Eq. ({part.tag})" + (f"  {part.text}" if part.text else "")
    return "\n".join(textwrap.fill(line, WIDTH) for line in _(part.text).split("\n"))
