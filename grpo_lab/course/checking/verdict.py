"""The verdict of a check, as text and as HTML. A status is always a word and a sign too, never a colour alone.

What a student needs next is said in a few lines; all of the input and of the results is in `details`, folded on a page.
"""

import html
import re
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

from grpo_lab.base.language import _, fill

WIDTH = 112  # of a line of text
WEIGHTS = {"values": 6, "gradients": 3, "stability": 1}  # how the points are shared by what an exercise asks for
MIN_SHARE = 0.2  # of the cases, below which nothing is earned: so many are right by chance
NO_VALUES = ("no gradient", "unchanged")  # words that stand in the place of a value
_STRESS = re.compile(r"(?<![a-zA-Z0-9_*])\*(\w[^*\n]{0,60}?)\*(?![a-zA-Z0-9_*])")  # Chinese has no space around it
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
    """A line of values: "yours     gradient of logp: 0.5". Where it is shown, its words are translated."""

    value: str  # never translated
    label: str = ""  # "input", "where", "yours" or "expected"; empty where a value goes on
    joint: str = ""  # between label and value: spaces to a column, or " = "
    subject: str = ""  # what is compared, if it is not the result
    case: str = ""  # in words

    @property
    def english(self) -> str:
        subject, case = self.subject and f"{self.subject}: ", self.case and f"  ({self.case})"
        return f"{self.label}{self.joint}{subject}{self.value}{case}"

    @property
    def translated(self) -> str:
        """The line in the reader's language, its value in the column in which it stands in English."""
        label, joint = _(self.label), self.joint
        if joint.isspace():
            joint = " " * max(len(self.label + joint) - _columns(label), 1)
        subject, case = self.subject and _compared(f"{self.subject}: "), self.case and f"  ({_(self.case)})"
        return f"{label}{joint}{subject}{_(self.value) if self.value in NO_VALUES else self.value}{case}"


@dataclass(frozen=True)
class Part:
    """A part of a verdict.

    kind: "say" (sentences), "values" (lines in fixed width under a title), "expected" (the same, left out
        of a page of marks) or "equation" (its tag is the title).
    """

    kind: str
    text: str  # in English
    title: str = ""
    rows: tuple[Row, ...] = ()  # of values, whose words are translated where they are shown


def rows_part(kind: str, rows: Sequence[Row], title: str = "") -> Part:
    return Part(kind, "\n".join(row.english for row in rows), title, tuple(rows))


@dataclass(frozen=True)
class Verdict:
    """The answer of `check`. The file of a grading has these fields under the same names.

    status: "right", "partly" (the values are), "wrong", "not started" or "form".
    fault: of code that cannot be judged by its numbers: "signature", "endless", "exit", "kind", "shape", "dtype",
        "inplace", "detached", "library", "stale".
    """

    exercise: str
    status: str
    parts: tuple[Part, ...] = ()  # shown at once
    folded: tuple[Part, ...] = ()  # shown where a reader unfolds them
    fault: str = ""
    misconceptions: tuple[str, ...] = ()  # the names of the mistakes that were recognised
    properties: dict[str, float] = field(default_factory=dict)  # of each, the share of its cases that are right
    full: int = 0  # the points where all cases are right
    judged: str = ""  # which cell's function it is about, where that is known

    @property
    def message(self) -> str:
        """The sentences of what is said at once."""
        return "\n".join(part.text for part in self.parts if part.kind == "say")

    @property
    def right(self) -> bool:
        return self.status == "right"

    @property
    def points(self) -> int | float:
        return worth(self)

    @property
    def details(self) -> str:
        """All that is known, as text: the whole input, both results, the equation."""
        return "\n\n".join(_text(part) for part in (*self.parts, *self.folded))

    def __repr__(self) -> str:
        invitation = "   " + _("(more: print(check(...).details))") if self.folded else ""
        invitation = (f"   {_(self.judged)}" if self.judged else "") + invitation
        return "\n".join([f"{self._head()}{invitation}", *(_text(part) for part in self.parts)])

    def _repr_html_(self) -> str:
        # The page's own colours are inherited: light, dark, and printed.
        box = f"border-left:0.4em solid {COLOURS[self.status]};padding:0.2em 1em;max-width:60em;color:inherit"
        head, body = (html.escape(self._head()), "".join(map(part_html, self.parts)))
        judged = f" <small>{html_of(_(self.judged))}</small>" if self.judged else ""
        return f'<div role="status" style="{box}"><p><b>{head}</b>{judged}</p>{body}{folded_html(self.folded)}</div>'

    def _head(self) -> str:
        """The status, with its points where they are neither all nor none."""
        status = TITLES[self.status]
        if not self.right and self.points:
            plural = "" if self.full == 1 else "s"
            status = fill("{0}, {1} of {2} point{3}", status, f"{self.points:g}", self.full, plural)
        return f"{SIGNS[self.status]} {self.exercise}: {_(status)}"


def worth(*verdicts: Verdict) -> int | float:
    """The points of an answer, from one verdict on it or several on other inputs: the smallest share counts.

    Where all values are right, each property has its weight: what holds in all cases all of it, else half of its share.
    Where some are wrong, the answer earns half of the share that is right, so that a wrong rule never earns more than
    half; nor does one whose gradients are wrong in a fifth of the cases, since it trains something else. Values that
    hold on the first verdict's inputs only were written down for them.
    """
    names = {name: None for verdict in verdicts for name in verdict.properties}
    shares = {name: [verdict.properties.get(name, 0.0) for verdict in verdicts] for name in names}
    if not names or (min(shares["values"]) < shares["values"][0] == 1):
        return 0
    share = {name: min(property_shares) for name, property_shares in shares.items()}
    total_weight = sum(WEIGHTS[name] for name in names)
    earned = sum(WEIGHTS[name] * (1 if share[name] == 1 else share[name] / 2) for name in names) / total_weight
    if share["values"] < 1:
        earned = share["values"] / 2 if share["values"] > MIN_SHARE else 0
    elif share.get("gradients", 1) <= 0.8:
        earned = min(earned, 0.5)
    points = round(verdicts[0].full * earned, 1)
    return int(points) if points == int(points) else points


def _value_lines(part: Part) -> str:
    """Lines in fixed width, their words in the reader's language."""
    return "\n".join(row.translated for row in part.rows) if part.rows else part.text


def _columns(text: str) -> int:
    """The width of a text in fixed width, in which a character of Chinese takes two columns."""
    return sum(1 + (unicodedata.east_asian_width(character) in "WF") for character in text)


def _compared(title: str) -> str:
    """A title, or what is compared and ": ", such as "gradient of logp: ", in the reader's language."""
    subject = title[:1].lower() + title[1:].rstrip(": ")
    known = (translation for wording in (subject, f"the {subject}") if (translation := _(wording)) != wording)
    return next((f"{translation}：" for translation in known), _(title))


def html_of(text: str) -> str:
    """HTML of sentences with `code` and *stress* in them."""
    pieces = html.escape(text).split("`")
    parts = [f"<code>{p}</code>" if i % 2 else _STRESS.sub(r"<em>\1</em>", p) for i, p in enumerate(pieces)]
    return "".join(parts).replace("\n", "<br>")


def part_html(part: Part) -> str:
    if part.kind in ("values", "expected"):
        block = "margin:0.2em 0 0.8em;overflow-x:auto;background:transparent;color:inherit"
        title = f"<div>{html_of(_compared(part.title))}</div>" if part.title else ""
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


def _text(part: Part) -> str:
    if part.kind in ("values", "expected"):
        return "\n".join([_compared(part.title), textwrap.indent(_value_lines(part), "    ")]).lstrip("\n")
    if part.kind == "equation":
        return f"Eq. ({part.title})" + (f"  {part.text}" if part.text else "")
    return "\n".join(textwrap.fill(line, WIDTH) for line in _(part.text).split("\n"))
