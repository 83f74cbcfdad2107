"""What a function calls is the library's: a neighbour that is missing or wrong costs nothing, and earns nothing."""

import pytest

from grpo_lab.course import check
from grpo_lab.course.exercises import earlier, exercise
from grpo_lab.course.grading.grade import grade
from grpo_lab.course.stub import stub_imports, stub_source
from grpo_lab.objective import importance_ratio
from tests.course.submitted import file_name, submit
from tests.course.test_sandbox import needs_bubblewrap

CALLER = """
def gspo_token_ratio(logp, old_logp, mask):
    return importance_ratio(logp, old_logp, mask, "sequence").detach() * (logp - logp.detach()).exp()
"""
WRONG_NEIGHBOUR = """
def importance_ratio(logp, old_logp, mask, level="token"):
    return (logp - old_logp.detach()).exp()
"""
# Neither says how it is computed.
CIRCLE = """
def importance_ratio(logp, old_logp, mask, level="token"):
    return gspo_token_ratio(logp, old_logp, mask)
"""
# Keeps the library's version once it is there, for the exercise that it belongs to.
THIEF = """
def gspo_token_ratio(logp, old_logp, mask):
    globals()["stolen"] = importance_ratio
    return stolen(logp, old_logp, mask, "sequence").detach() * (logp - logp.detach()).exp()

def importance_ratio(logp, old_logp, mask, level="token"):
    return stolen(logp, old_logp, mask, level)
"""


def stub(name: str) -> str:
    return "\n".join([*stub_imports(exercise(name)), stub_source(exercise(name))])


@pytest.mark.parametrize("neighbour", [stub("importance_ratio"), WRONG_NEIGHBOUR, "importance_ratio = None"])
def test_an_earlier_exercise_that_is_called_is_the_library_s_whatever_the_notebook_has(neighbour):
    notebook: dict = {}
    exec(f"{neighbour}\n{CALLER}", notebook)
    own = notebook["importance_ratio"]
    assert check(notebook["gspo_token_ratio"]).right
    assert notebook["importance_ratio"] is own is not importance_ratio
    if callable(own):
        assert not check(own).right


def test_a_later_exercise_stays_the_notebook_s_own():
    """Two that are each computed from the other would both be right otherwise."""
    notebook: dict = {}
    circle = "def importance_ratio(logp, old_logp, mask, level='token'):\n"
    exec(f"{circle}    return gspo_token_ratio(logp, old_logp, mask)\n{CALLER}", notebook)
    assert check(notebook["importance_ratio"]).points == 0
    assert check(notebook["gspo_token_ratio"]).right
    assert earlier("importance_ratio") == earlier("no such exercise") == ()


@needs_bubblewrap
@pytest.mark.slow
def test_grading_lends_the_neighbours_and_gives_no_points_for_them(tmp_path):
    submit(tmp_path / "blank" / file_name("05"), "05", gspo_token_ratio=CALLER)
    submit(tmp_path / "wrong" / file_name("05"), "05", gspo_token_ratio=CALLER, importance_ratio=WRONG_NEIGHBOUR)
    submit(tmp_path / "circle" / file_name("05"), "05", gspo_token_ratio=CALLER, importance_ratio=CIRCLE)
    submit(tmp_path / "thief" / file_name("05"), "05", gspo_token_ratio=THIEF)
    earned = {
        one.submission.student: {name: points for name, points in one.points.items() if points}
        for one in grade(tmp_path, 31, jobs=2).students
    }
    points = exercise("gspo_token_ratio").points
    partly = earned["wrong"].pop("importance_ratio", 0)
    assert partly < exercise("importance_ratio").points
    assert earned == {student: {"gspo_token_ratio": points} for student in earned}
