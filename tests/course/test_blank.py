"""One unfinished exercise does not block the next: a stub that nobody touched is lent the library's function."""

import pytest

from grpo_lab.course import check
from grpo_lab.course.exercises import exercise
from grpo_lab.course.grading.grade import grade
from grpo_lab.course.grading.sandbox.run import Limits
from grpo_lab.course.stub import stub_imports, stub_source, untouched
from grpo_lab.objective import importance_ratio
from tests.course.submitted import file_name, submit

CALLER = """
def gspo_token_ratio(logp, old_logp, mask):
    return importance_ratio(logp, old_logp, mask, "sequence").detach() * (logp - logp.detach()).exp()
"""
WRONG_NEIGHBOUR = """
def importance_ratio(logp, old_logp, mask, level="token"):
    return (logp - old_logp.detach()).exp()
"""
TRICK = "globals()['importance_ratio'] = __import__('grpo_lab.objective').objective.importance_ratio"


def stub(name: str) -> str:
    return "\n".join([*stub_imports(exercise(name)), stub_source(exercise(name))])


def test_check_lends_the_library_to_a_stub_and_takes_it_back():
    notebook: dict = {}
    exec(stub("importance_ratio") + CALLER, notebook)
    own = notebook["importance_ratio"]
    assert check(notebook["gspo_token_ratio"]).right
    assert notebook["importance_ratio"] is own is not importance_ratio
    assert check(own).status == "not started"


def test_check_lends_nothing_to_a_neighbour_that_was_written():
    notebook: dict = {}
    exec(WRONG_NEIGHBOUR + CALLER, notebook)
    assert not check(notebook["gspo_token_ratio"]).right


@pytest.mark.parametrize(
    ("cells", "blank"),
    [
        ([stub("importance_ratio")], True),
        ([stub("importance_ratio"), "x = importance_ratio"], True),
        ([], False),  # no function of this name at all: it is missing, not blank
        ([stub("importance_ratio"), WRONG_NEIGHBOUR], False),
        ([stub("importance_ratio"), "from grpo_lab.objective import importance_ratio"], False),
        ([stub("importance_ratio"), "importance_ratio = lambda *a: a[0]"], False),
        ([stub("importance_ratio"), "if True:\n    def importance_ratio(): pass"], False),
        ([stub("importance_ratio"), "from x import y as importance_ratio"], False),
        ([stub("importance_ratio").replace("raise", "x = 1\n    raise")], False),
        (["def importance_ratio(x):\n    raise NotImplementedError('importance_ratio is not written yet')"], True),
        ([stub("importance_ratio").replace("is not written yet", "is not what I want")], False),
        ([stub("importance_ratio"), "%magic\nimportance_ratio = 3"], False),  # cannot be read, and mentions it
    ],
)
def test_a_stub_is_untouched_if_nothing_else_binds_its_name(cells, blank):
    assert untouched(cells, ["importance_ratio"]) == ({"importance_ratio"} if blank else set())


@pytest.mark.slow
def test_grading_lends_to_blank_neighbours_and_gives_no_points_for_them(tmp_path):
    submit(tmp_path / "blank" / file_name("05"), "05", gspo_token_ratio=CALLER)
    submit(tmp_path / "wrong" / file_name("05"), "05", gspo_token_ratio=CALLER, importance_ratio=WRONG_NEIGHBOUR)
    submit(tmp_path / "trick" / file_name("05"), "05", cells=(TRICK,), gspo_token_ratio=CALLER)
    taken = "from grpo_lab.objective import importance_ratio\n"
    submit(tmp_path / "taken" / file_name("05"), "05", gspo_token_ratio=CALLER, importance_ratio=taken)
    grading = grade(tmp_path, 31, jobs=2, limits=Limits(seconds=15.0))
    marks = {one.submission.student: {m.exercise.name: m for m in one.marks} for one in grading.graded}
    points = exercise("gspo_token_ratio").points
    earned = {student: {name: m.points for name, m in of.items() if m.points} for student, of in marks.items()}
    assert earned == {
        "blank": {"gspo_token_ratio": points},
        "wrong": {"gspo_token_ratio": points},
        "trick": {"gspo_token_ratio": points},
        "taken": {"gspo_token_ratio": points},
    }
    assert marks["blank"]["importance_ratio"].status == "not started"
    notes = {student: of["gspo_token_ratio"].note for student, of in marks.items()}
    assert notes["blank"] == notes["trick"] == "" and "since yours is not right yet" in notes["wrong"] == notes["taken"]


def test_a_stub_that_is_nested_deeper_than_python_reads_counts_as_touched():
    deep = "def importance_ratio(x):\n    raise NotImplementedError(" + "-" * 900 + "1)\n"
    assert untouched([deep], ["importance_ratio"]) == set()
