"""The verdict of a check, as text and as HTML. A status is shown as a word and a sign, never as a colour alone.

A verdict shows a few lines that a student needs next. The whole input and all results are in `details`, which a page
shows folded.
"""

import html
import re
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

from grpo_lab.base.language import _, fill

WIDTH = 112  # characters of a line of text
WEIGHTS = {"values": 6, "gradients": 3, "stability": 1}  # the weight of each property in the points of an exercise
MIN_SHARE = 0.2  # the share of right cases up to which an answer earns nothing, because it may be right by chance
NO_VALUES = ("no gradient", "unchanged")  # words that are shown in the place of a value
_EMPHASIS = re.compile(r"(?<![a-zA-Z0-9_*])\*(\w[^*\n]{0,60}?)\*(?![a-zA-Z0-9_*])")  # Chinese puts no space around it
TITLES = {
    "right": "right",
    "partly": "partly right",
    "wrong": "not right yet",
    "form": "not right yet",
    "not started": "not done yet",
}
SIGNS = {"right": "✓", "partly": "◐", "wrong": "✗", "form": "✗", "not started": "○"}
COLOURS = {"right": "#009E73", "partly": "#0072B2", "wrong": "#D55E00", "form": "#D55E00", "not started": "#808080"}


@dataclass(frozen=True)
class Row:
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
        kind: "say" for sentences; "values" for lines in fixed width under a title; "expected" for such lines with what
            is expected, which a student's page of a grading leaves out; "equation" for an equation.
        text: The text in English; the LaTeX of an equation.
        title: The title in English; the tag of an equation.
        rows: The lines of `text`, if their words are to be translated one by one.
    """

    kind: str
    text: str
    title: str = ""
    rows: tuple[Row, ...] = ()


def rows_part(kind: str, rows: Sequence[Row], title: str = "") -> Part:
    return Part(kind, "\n".join(row.english for row in rows), title, tuple(rows))


@dataclass(frozen=True)
class Verdict:
    """The result of a check.

    Attributes:
        exercise: The name of the exercise.
        status: "right"; "partly" if the values are right and something else is not; "wrong"; "not started"; or "form"
            if the code cannot be judged by its numbers.
        parts: The parts that are shown at once.
        folded_parts: The parts that are shown when a reader unfolds the details.
        fault: A short name for what is wrong with the form: "signature", "endless", "exit", "kind", "shape", "dtype",
            "inplace", "detached", "library", "stale" or, in a grading, "stopped"; "" without one.
        misconceptions: The names of the mistakes that were recognised.
        shares: The share of cases that are right, by property: "values", "gradients", "stability".
        max_points: The points of an answer that is right in all cases.
        judged_cell: A sentence on the notebook cell that defined the function; "" if that is not known.
    """

    exercise: str
    status: str
    parts: tuple[Part, ...] = ()
    folded_parts: tuple[Part, ...] = ()
    fault: str = ""
    misconceptions: tuple[str, ...] = ()
    shares: dict[str, float] = field(default_factory=dict)
    max_points: int = 0
    judged_cell: str = ""

    @property
    def message(self) -> str:
        """The sentences that are shown at once."""
        return "\n".join(part.text for part in self.parts if part.kind == "say")

    @property
    def right(self) -> bool:
        return self.status == "right"

    @property
    def points(self) -> int | float:
        return earned_points(self)

    @property
    def details(self) -> str:
        """All parts as text: the sentences, the whole input, both results and the equation."""
        return "\n\n".join(_part_text(part) for part in (*self.parts, *self.folded_parts))

    def __repr__(self) -> str:
        judged_cell = f"   {_(self.judged_cell)}" if self.judged_cell else ""
        invitation = "   " + _("(more: print(check(...).details))") if self.folded_parts else ""
        return "\n".join([f"{self._head()}{judged_cell}{invitation}", *(_part_text(part) for part in self.parts)])

    def _repr_html_(self) -> str:
        # Colours are inherited from the page, so that the box fits a light, a dark and a printed one.
        box = f"border-left:0.4em solid {COLOURS[self.status]};padding:0.2em 1em;max-width:60em;color:inherit"
        head, body = (html.escape(self._head()), "".join(map(part_html, self.parts)))
        judged_cell = f" <small>{html_of(_(self.judged_cell))}</small>" if self.judged_cell else ""
        body += folded_html(self.folded_parts)
        return f'<div role="status" style="{box}"><p><b>{head}</b>{judged_cell}</p>{body}</div>'

    def _head(self) -> str:
        """Return the first line: the status, and the points of an answer that earns some of them."""
        status = TITLES[self.status]
        if not self.right and self.points:
            plural = "" if self.max_points == 1 else "s"
            status = fill("{0}, {1} of {2} point{3}", status, f"{self.points:g}", self.max_points, plural)
        return f"{SIGNS[self.status]} {self.exercise}: {_(status)}"


def earned_points(*verdicts: Verdict) -> int | float:
    """Return the points of an answer, from one or more verdicts on it.

    With several verdicts, on different inputs, the smallest share of each property counts.

    - If all values are right, the points are shared among the properties by their weights. A property that holds in
      all cases earns its weight, any other one half of its share.
    - If some values are wrong, the answer earns half of the share of right values, so a wrong rule earns at most half.
    - If a fifth of the gradients or more are wrong, it earns at most half, since the answer trains something else.
    - If all values are right for the first verdict only, it earns nothing: they were written down for its inputs.
    """
    names = {name: None for verdict in verdicts for name in verdict.shares}
    shares_of = {name: [verdict.shares.get(name, 0.0) for verdict in verdicts] for name in names}
    if not names or (min(shares_of["values"]) < shares_of["values"][0] == 1):
        return 0
    smallest = {name: min(shares) for name, shares in shares_of.items()}
    if smallest["values"] < 1:
        earned = smallest["values"] / 2 if smallest["values"] > MIN_SHARE else 0
    else:
        total_weight = sum(WEIGHTS[name] for name in names)
        earned = (
            sum(WEIGHTS[name] * (1 if share == 1 else share / 2) for name, share in smallest.items()) / total_weight
        )
        if smallest.get("gradients", 1) <= 0.8:
            earned = min(earned, 0.5)
    points = round(verdicts[0].max_points * earned, 1)
    return int(points) if points == int(points) else points


def _value_lines(part: Part) -> str:
    """Return the lines of values, with their words in the reader's language."""
    return "\n".join(row.translated for row in part.rows) if part.rows else part.text


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
    if part.kind in ("values", "expected"):
        block = "margin:0.2em 0 0.8em;overflow-x:auto;background:transparent;color:inherit"
        title = f"<div>{html_of(_title_in_language(part.title))}</div>" if part.title else ""
        return f'{title}<pre style="{block}">{html.escape(_value_lines(part))}</pre>'
    if part.kind == "equation":
        latex = f"$$ {html.escape(part.text)} \\tag{{{part.title}}} $$" if part.text else ""
        return f"<div>Eq. ({part.title})</div>{latex}"
    return f"<p>{html_of(_(part.text))}</p>"


def folded_html(parts: Sequence[Part]) -> str:
    if not parts:
        return ""
    body = "".join(map(part_html, parts))
    return f"<details><summary>{_('The whole input, both results, the equation')}</summary>{body}</details>"


def _part_text(part: Part) -> str:
    if part.kind in ("values", "expected"):
        return "\n".join([_title_in_language(part.title), textwrap.indent(_value_lines(part), "    ")]).lstrip("\n")
    if part.kind == "equation":
        return f"Eq. ({part.title})" + (f"  {part.text}" if part.text else "")
    return "\n".join(textwrap.fill(line, WIDTH) for line in _(part.text).split("\n"))
