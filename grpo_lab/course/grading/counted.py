"""Which assignments a grading is about: a stray notebook of another one changes nobody's sum."""

from collections import Counter

from grpo_lab.course.grading.submissions import Submission

NOT_COUNTED, NOT_THERE = "which is not graded here", "not handed in: "


def stems_of(wanted: str | None, assignments: dict[str, tuple[str, ...]]) -> list[str]:
    """ "02" or "02,05" as file stems.

    Raises:
        ValueError: for an assignment that there is not.
    """
    stems = []
    for name in (wanted or "").replace(",", " ").split():
        found = [stem for stem in assignments if name in (stem, stem[:2])]
        if not found:
            numbers = ", ".join(stem[:2] for stem in assignments)
            raise ValueError(f"assignment is {name!r}; expected one of {numbers}, or several with commas")
        stems += found
    return sorted(set(stems))


def that_count(found: list[Submission], wanted: list[str]) -> tuple[list[Submission], list[str]]:
    """What is graded, and of which assignments; what is of another one is remarked, and so is what is missing.

    wanted: the assignments that count; none means those that more than half of the students handed in, or else what
        most did.
    """
    by_student: dict[tuple[str, str, str], list[Submission]] = {}
    for one in found:
        by_student.setdefault((one.student, one.number, one.email), []).append(one)
    counted = wanted or _most_handed_in(list(by_student.values()))
    kept = [one for ones in by_student.values() for one in _of_these(ones, set(counted))]
    return kept, counted


def _most_handed_in(by_student: list[list[Submission]]) -> list[str]:
    often = Counter(name for ones in by_student for name in {one.assignment for one in ones} - {""})
    students = sum(any(one.assignment for one in ones) for ones in by_student)
    most = max(often.values(), default=0)
    return sorted(name for name, n in often.items() if 2 * n > students or n == most)


def _of_these(ones: list[Submission], counted: set[str]) -> list[Submission]:
    own = [one for one in ones if not one.assignment or one.assignment in counted]
    other = [one for one in ones if one.assignment and one.assignment not in counted]
    said = [f"{one.name} is for {one.assignment}, {NOT_COUNTED}, and was left out" for one in other]
    if not own:
        first, *_ = other
        first.problem, first.notes = f"it is for {first.assignment}, {NOT_COUNTED}", said[1:]
        first.assignment, first.cells, first.written = "", [], {}
        return [first]
    missing = counted - {one.assignment for one in own}
    if missing and not any(one.problem for one in own):
        said.append(f"{NOT_THERE}{', '.join(sorted(missing))}")
    own[0].notes += said
    return own
