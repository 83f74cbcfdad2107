"""What should make a teacher look twice before the marks go anywhere: in the shell, in JSON, on the class's page.

Without names: each student's own part of it stands in the remarks.
"""

from grpo_lab.course.checking.verdict import count
from grpo_lab.course.grading.counted import NOT_COUNTED, NOT_THERE
from grpo_lab.course.grading.grade import Grading
from grpo_lab.course.grading.results import Extras, Result
from grpo_lab.course.grading.submissions import SAME

GIVE_TIMES = "--times gives the times of submission"


def doubts(grading: Grading, found: list[Result], extras: Extras) -> list[str]:
    """Sentences, the gravest first."""
    handed_in = [one for one in found if one.graded]
    return [*_one_student(handed_in), *_assignments(grading, handed_in), *_times(handed_in, extras)]


def _one_student(handed_in: list[Result]) -> list[str]:
    left_out = _with(SAME, handed_in[0]) if len(handed_in) == 1 else 0
    if left_out < 2:
        return []
    said = f"only one student was found, of whom {left_out} notebooks for the same assignment were left out"
    return [f"{said}: if it is a class, name the folder that has an entry for each student"]


def _assignments(grading: Grading, handed_in: list[Result]) -> list[str]:
    numbers = ", ".join(name[:2] for name in grading.assignments)
    said = []
    if stray := sum(_with(NOT_COUNTED, one) > 0 for one in handed_in):
        said.append(f"{count(stray, 'student')} handed in another assignment than {numbers}, which is not graded")
    if len(grading.assignments) > 1 and (lacking := sum(_with(NOT_THERE, one) > 0 for one in handed_in)):
        said.append(f"{count(lacking, 'student')} did not hand in all of {numbers}, which make one sum")
    return [f"{one}; --assignment says what counts" for one in said]


def _times(handed_in: list[Result], extras: Extras) -> list[str]:
    """The files' own dates may be those of a download, or of a copy."""
    by_file = [one for one in handed_in if one.by_file and any(not graded.submission.problem for graded in one.graded)]
    if not extras.deadline or not by_file:
        return []
    said = []
    if extras.times:
        said.append(f"times has no line for {count(len(by_file), 'student')}: the files' own dates count for them")
    if all(one.late for one in by_file):
        said.append(f"by the files' own dates, which may be those of a download, all {len(by_file)} of them are late")
    canvas = [one for one in by_file if any(graded.submission.platform == "canvas" for graded in one.graded)]
    late, marked = sum(one.late > 0 for one in canvas), sum(one.marked_late for one in canvas)
    if any((one.late > 0) != one.marked_late for one in canvas):
        said.append(f"Canvas marks {marked} of {len(canvas)} as late, the files' own dates {late}")
    return [*said[:-1], f"{said[-1]}; {GIVE_TIMES}"] if said else []


def _with(words: str, one: Result) -> int:
    """In how many of the remarks these words stand."""
    return sum(words in remark for remark in one.remarks)
