"""The verdict of a check, as text and as HTML. A status is shown as a word and a sign, not by colour alone.

A verdict consists of parts: sentences, lines of values, equations. It shows a few lines that a student needs next. The
whole input and all results are in `details`, which a page shows folded.
"""

import html
import re
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from grpo_lab.base.language import _, fill
from grpo_lab.course.checking.outcome import Fault
from grpo_lab.course.checking.points import earned_points

WIDTH = 112  # characters of a line of text
NO_VALUES = ("no gradient", "unchanged")  # words that are shown in place of a value
_EMPHASIS = re.compile(r"(?<![a-zA-Z0-9_*])\*(\w[^*\n]{0,60}?)\*(?![a-zA-Z0-9_*])")  # Chinese puts no space around it


class Status(StrEnum):
    """How far an answer is. The values are stored in the file of grades."""

    RIGHT = "right"
    PARTLY = "partly"  # the values are right, and something else is not
    WRONG = "wrong"
    FORM = "form"  # the code cannot be judged by its numbers
    NOT_STARTED = "not started"


class StatusStyle(NamedTuple):
    """How a status is shown; the title is translated when it is shown."""

    title: str
    sign: str
    colour: str


STYLES = {
    Status.RIGHT: StatusStyle("right", "✓", "#009E73"),
    Status.PARTLY: StatusStyle("partly right", "◐", "#0072B2"),
    Status.WRONG: StatusStyle("not right yet", "✗", "#D55E00"),
    Status.FORM: StatusStyle("not right yet", "✗", "#D55E00"),
    Status.NOT_STARTED: StatusStyle("not done yet", "○", "#808080"),
}


class PartKind(StrEnum):
    """The content of a part of a verdict. The values are stored in the file of grades."""

    SENTENCES = "say"
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
            joint = " " * max(len(self.label + joint) - _columns(label), 1)
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


def lines_part(kind: PartKind, lines: Sequence[ValueLine], title: str = "") -> Part:
    """Return a part that consists of lines of values."""
    return Part(kind, "\n".join(line.english for line in lines), title, tuple(lines))


def _value_lines(part: Part) -> str:
    """Return the lines of values, with their words in the reader's language."""
    return "\n".join(line.translated for line in part.rows) if part.rows else part.text


def _columns(text: str) -> int:
    """Return the columns that a text takes in a fixed-width font, where a Chinese character takes two."""
    return sum(1 + (unicodedata.east_asian_width(character) in "WF") for character in text)


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
