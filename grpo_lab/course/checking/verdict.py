"""The verdict of a check, and the points that it earns. A status is shown as a word and a sign, not by colour alone.

A verdict shows a few lines that a student needs next. The whole input and all results are in `details`, which a page
shows folded.
"""

import html
from dataclasses import dataclass, field

from grpo_lab.base.language import _, fill
from grpo_lab.course.checking.verdict_parts import Part, folded_html, html_of, part_html, part_text

WEIGHTS = {"values": 6, "gradients": 3, "stability": 1}  # the weight of each property in the points of an exercise
MAX_CHANCE_SHARE = 0.2  # an answer with no larger share of right cases may be right by chance, and earns nothing
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
        return "\n\n".join(part_text(part) for part in (*self.parts, *self.folded_parts))

    def __repr__(self) -> str:
        judged_cell = f"   {_(self.judged_cell)}" if self.judged_cell else ""
        invitation = "   " + _("(more: print(check(...).details))") if self.folded_parts else ""
        return "\n".join([f"{self._head()}{judged_cell}{invitation}", *(part_text(part) for part in self.parts)])

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

    - If all values are right, the points are shared among the properties by their weights. A property that holds in all
      cases earns its whole weight; any other earns half of its share of the weight.
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
        earned = smallest["values"] / 2 if smallest["values"] > MAX_CHANCE_SHARE else 0
    else:
        total_weight = sum(WEIGHTS[name] for name in names)
        earned = (
            sum(WEIGHTS[name] * (1 if share == 1 else share / 2) for name, share in smallest.items()) / total_weight
        )
        if smallest.get("gradients", 1) <= 0.8:
            earned = min(earned, 0.5)
    points = round(verdicts[0].max_points * earned, 1)
    return int(points) if points == int(points) else points
