"""The page of a class, for the teacher: what was right, which mistakes were made, what to talk about in the lecture."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import datetime

from grpo_lab.course.checking.verdict import count, prose
from grpo_lab.course.exercise import Exercise
from grpo_lab.course.grading.grade import Grading
from grpo_lab.course.grading.pages import document, safe
from grpo_lab.course.grading.report import plain
from grpo_lab.course.grading.results import STRANGER, Result, out_of
from grpo_lab.course.grading.similar import similar

TO_DISCUSS = 2  # mistakes proposed for the next lecture


@dataclass(frozen=True)
class Lost:
    """One known mistake of one exercise: how many made it, and how many points it cost them."""

    exercise: Exercise
    name: str
    students: int
    points: int | float

    @property
    def says(self) -> str:
        return next(m.says for m in self.exercise.misconceptions if m.name == self.name)


def mistakes(grading: Grading) -> list[Lost]:
    """Every known mistake that somebody made, the dearest first.

    An answer in which several mistakes were recognised counts for each of them, and they share its points.
    """
    counted: Counter[tuple[str, str]] = Counter()
    cost: defaultdict[tuple[str, str], float] = defaultdict(float)
    for one in grading.graded:
        for mark in one.marks:
            known = {m.name for m in mark.exercise.misconceptions}
            named = [n for n in mark.verdict.misconceptions if n in known] if mark.verdict is not None else []
            for name in named:
                counted[mark.exercise.name, name] += 1
                cost[mark.exercise.name, name] += (mark.exercise.points - mark.points) / len(named)
    by_name = {exercise.name: exercise for exercise in grading.exercises}
    lost = [Lost(by_name[e], name, n, round(cost[e, name], 1)) for (e, name), n in counted.items()]
    return sorted(lost, key=lambda one: (-one.points, one.exercise.name, one.name))


def to_discuss(lost: list[Lost]) -> list[Lost]:
    """The dearest mistakes, of different exercises."""
    chosen: list[Lost] = []
    for one in lost:
        if one.exercise.name not in {other.exercise.name for other in chosen}:
            chosen.append(one)
    return chosen[:TO_DISCUSS]


def headline(found: list[Result]) -> str:
    """How many handed in; where there is a roster, those who are not on it are no part of the class."""
    strangers = [one for one in found if STRANGER in one.remarks]
    handed_in = [one for one in found if one.graded and STRANGER not in one.remarks]
    told = f"{len(handed_in)} of {len(found) - len(strangers)} handed in"
    return f"{told}, and {len(strangers)} not found on the roster" if strangers else told


def averaged(found: list[Result], grading: Grading) -> str:
    """The mean of those who handed in and were graded; it says what it leaves out."""
    graded = [one for one in found if one.graded and not one.ungraded]
    mean = sum(one.total for one in graded) / max(1, len(graded))
    unmarked = sum(bool(one.unmarked) for one in graded)
    told = f"{plain(round(mean, 1))} of {out_of(grading)} points on average of {len(graded)}"
    return f"{told}, written answers of {unmarked} not marked yet" if unmarked else told


def to_look_at(found: list[Result]) -> list[str]:
    """All that was remarked, each student by name; what is the same of several is said once, and of whom."""
    students: dict[str, list[str]] = {}
    for one in found:
        for remark in one.said:
            students.setdefault(remark, []).append(one.student)
    shared = [f"{remark} ({len(names)}): {', '.join(names)}" for remark, names in students.items() if len(names) > 1]
    own = [(one.student, [remark for remark in one.said if len(students[remark]) == 1]) for one in found]
    return shared + [f"{student}: {'; '.join(remarks)}" for student, remarks in own if remarks]


def class_page(grading: Grading, found: list[Result]) -> str:
    handed_in = [one for one in found if one.graded and not one.ungraded]
    body = [
        f"<h1>{headline(found)}</h1>",
        f"<p>{averaged(found, grading)}. Seed {grading.seed}.</p>",
        "".join(f"<p><b>Mind: {safe(doubt)}.</b></p>" for doubt in grading.doubts),
        "" if grading.finished else "<p><b>The grading was interrupted: this is not the whole class.</b></p>",
        _discuss(mistakes(grading)),
        _exercises(grading),
        _mistakes(mistakes(grading)),
        _distribution(handed_in, out_of(grading)),
        _times(grading),
        _alike(grading),
        _problems(found),
    ]
    return document("The class", "\n".join(part for part in body if part))


def _discuss(lost: list[Lost]) -> str:
    rows = [
        f"<li><code>{safe(one.exercise.name)}</code>, <b>{safe(one.name)}</b> "
        f"({count(one.students, 'student')}, {count(one.points, 'point')}): {prose(one.says)}</li>"
        for one in to_discuss(lost)
    ]
    return f"<section><h2>For the next lecture</h2><ol>{''.join(rows)}</ol></section>" if rows else ""


def _exercises(grading: Grading) -> str:
    """For each exercise how many were right, not right, not begun, as a bar and in numbers."""
    rows = []
    for exercise in grading.exercises:
        marks = [mark for one in grading.graded for mark in one.marks if mark.exercise.name == exercise.name]
        kinds = Counter(mark.kind for mark in marks)
        mean = sum(mark.points for mark in marks) / max(1, len(marks))
        n = max(1, sum(kinds.values()))
        bar = "".join(f'<i class="{kind}" style="width:{100 * kinds[kind] / n:.1f}%"></i>' for kind in KINDS)
        cells = "".join(f'<td class="n">{kinds[kind]}</td>' for kind in KINDS)
        cells += f'<td class="n">{mean:.1f} of {exercise.points}</td>'
        rows.append(f'<tr><td><code>{safe(exercise.name)}</code></td><td class="bar">{bar}</td>{cells}</tr>')
    words = "".join(f"<th class='n'>{word}</th>" for word in ("right", "not right", "not begun", "points"))
    head = f"<tr><th>function</th><th></th>{words}</tr>"
    return f"{BARS}<section><h2>Functions</h2><table>{head}{''.join(rows)}</table></section>" if rows else ""


KINDS = ("right", "wrong", "none")
BARS = (
    "<style>td.bar { width: 34%; white-space: nowrap; } td.bar i { display: inline-block; height: .8em; } "
    "i.right { background: #009e73; } i.wrong { background: #d55e00; } i.none { background: #999; } "
    "td.count { width: 60%; } td.count i { background: #0072b2; height: .8em; display: inline-block; }</style>"
)


def _mistakes(lost: list[Lost]) -> str:
    rows = "".join(
        f'<tr><td><code>{safe(one.exercise.name)}</code></td><td>{safe(one.name)}</td><td class="n">{one.students}</td>'
        f'<td class="n">{plain(one.points)}</td></tr>'
        for one in lost
    )
    head = "<tr><th>function</th><th>known mistake</th><th class='n'>students</th><th class='n'>points lost</th></tr>"
    return f"<section><h2>Mistakes that were recognised</h2><table>{head}{rows}</table></section>" if rows else ""


def _distribution(found: list[Result], most: int) -> str:
    """How many students have which share of the points, in tenths."""
    if not found or not most:
        return ""
    tenths = Counter(min(9, int(10 * one.total / most)) for one in found)
    rows = "".join(
        f'<tr><td>{plain(most * t / 10)} to {plain(most * (t + 1) / 10)}</td><td class="count">'
        f'<i style="width:{100 * tenths[t] / len(found):.1f}%"></i></td><td class="n">{tenths[t]}</td></tr>'
        for t in range(10)
    )
    return f"<section><h2>Points</h2><table>{rows}</table></section>"


def _times(grading: Grading) -> str:
    """When it came, by the day, as a platform wrote it down, or else as the files' own dates say."""
    times = [one.submission.modified for one in grading.graded if one.submission.modified]
    if not times:
        return ""
    days = Counter(filter(None, map(_day, times)))
    rows = "".join(
        f'<tr><td>{day}</td><td class="count"><i style="width:{100 * n / len(times):.1f}%"></i></td>'
        f'<td class="n">{n}</td></tr>'
        for day, n in sorted(days.items())
    )
    return f"<section><h2>Handed in, by the day</h2><table>{rows}</table></section>"


def _day(time: float) -> str:
    try:
        return datetime.fromtimestamp(time).strftime("%Y-%m-%d")
    except (OverflowError, ValueError, OSError):  # a year that no calendar has
        return ""


def _alike(grading: Grading) -> str:
    rows = "".join(
        f"<li>{safe(', '.join(one.students))}: {safe(', '.join(one.exercises))}</li>" for one in similar(grading)
    )
    if not rows:
        return ""
    hint = "A hint, and no proof: short right answers are often alike, and people may work together where you allow it."
    return f'<section><h2>Answers of the same shape</h2><p class="quiet">{hint}</p><ul>{rows}</ul></section>'


def _problems(found: list[Result]) -> str:
    rows = "".join(f"<li>{safe(line)}</li>" for line in to_look_at(found))
    return f"<section><h2>To look at</h2><ul>{rows}</ul></section>" if rows else ""
