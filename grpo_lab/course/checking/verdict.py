"""The verdict of a check. A status is shown as a word and a sign, not by colour alone.

A verdict shows a few lines that a student needs next. The whole input and all results are in `details`, which a page
shows folded.
"""

import html
from dataclasses import dataclass, field
from typing import NamedTuple

from grpo_lab.base.language import _, fill
from grpo_lab.course.checking.points import earned_points
from grpo_lab.course.checking.status import Fault, Status
from grpo_lab.course.checking.verdict_parts import Part, PartKind, folded_html, html_of, part_html, part_text


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
