"""Error carried forward: a right function does not pay for a wrong one that it calls, and nobody gains by a circle."""

import json

import pytest

from grpo_lab.course import check, finished, progress
from grpo_lab.course.checking import Verdict, expectations, session, worth
from grpo_lab.course.checking.stand_ins import called
from grpo_lab.course.exercises import earlier, exercise
from grpo_lab.course.grading import grade as grade_module
from grpo_lab.course.grading.carried import carry_forward
from grpo_lab.course.grading.grade import grade
from grpo_lab.course.grading.marks import Mark, mark_exercise
from grpo_lab.course.grading.platforms import gradescope_results
from grpo_lab.course.grading.records import Records
from grpo_lab.course.grading.report import page, to_json
from grpo_lab.course.grading.results import Extras, results
from grpo_lab.course.grading.sandbox.returned import Result, Returned
from grpo_lab.course.grading.sandbox.run import Limits, Sandbox
from tests.course.submitted import file_name, submit
from tests.course.test_blank import CALLER, WRONG_NEIGHBOUR

SENTENCE = "Judged with the library's `importance_ratio`, since yours is not right yet."
DOUBLED = CALLER + "\n\nright = gspo_token_ratio\n\n\ndef gspo_token_ratio(logp, old_logp, mask):\n"
DOUBLED += "    return 2 * right(logp, old_logp, mask)\n"
# Neither says how it is computed.
CIRCLE = {
    "importance_ratio": """
def importance_ratio(logp, old_logp, mask, level="token"):
    if level not in ("token", "sequence"):
        raise ValueError(f"level is {level!r}")
    return gspo_token_ratio(logp, old_logp, mask)
""",
    "gspo_token_ratio": CALLER,
}


@pytest.fixture(autouse=True)
def _a_new_session():
    session.clear()
    yield
    session.clear()


def notebook(*sources: str) -> dict:
    names: dict = {}
    for source in sources:
        exec(source, names)
    return names


def test_check_says_whose_mistake_it_is():
    names = notebook(WRONG_NEIGHBOUR, CALLER)
    verdict = check(names["gspo_token_ratio"])
    assert not verdict.right and not verdict.misconceptions
    assert "calls your `importance_ratio`, which is not right yet" in verdict.message
    assert "every case comes out right" in repr(verdict) and verdict.parts[1:] == ()
    assert worth(verdict) == exercise("gspo_token_ratio").points
    assert finished() == {} and [row[3] for row in progress().rows if row[0] == "gspo_token_ratio"] == ["1"]
    assert names["importance_ratio"].__globals__ is names and "level" in names["importance_ratio"].__code__.co_varnames


def test_check_says_what_is_left_when_both_are_wrong():
    verdict = check(notebook(WRONG_NEIGHBOUR, DOUBLED)["gspo_token_ratio"])
    assert "This is what is left with the library's in its place" in verdict.message
    assert "2 times what is expected" in verdict.message and worth(verdict) == 0


def test_check_blames_no_neighbour_that_is_right():
    names = notebook("from grpo_lab.objective import importance_ratio", DOUBLED)
    names["importance_ratio"] = notebook(LIBRARY_AGAIN)["importance_ratio"]
    verdict = check(names["gspo_token_ratio"])
    assert not verdict.right and "importance_ratio" not in verdict.message


LIBRARY_AGAIN = """
from grpo_lab.objective import importance_ratio as library


def importance_ratio(logp, old_logp, mask, level="token"):
    return library(logp, old_logp, mask, level)
"""


def test_a_neighbour_that_is_no_more_than_a_stub_costs_nothing_either():
    stub = "def importance_ratio(logp, old_logp, mask, level='token'):\n    raise NotImplementedError('yours to write')"
    assert worth(check(notebook(stub, CALLER)["gspo_token_ratio"])) == exercise("gspo_token_ratio").points


def test_only_earlier_exercises_are_lent():
    assert earlier("clipped_surrogate") == ["importance_ratio", "gspo_token_ratio"]
    assert earlier("importance_ratio") == earlier("no such exercise") == []
    verdict = check(notebook(*CIRCLE.values())["importance_ratio"])
    assert worth(verdict) == 0 and "gspo_token_ratio` first" not in verdict.message


def test_whom_a_function_calls():
    a, b = "def a(): return b()\n", "def b(): return (lambda: c)()\n"
    names = notebook(a, b, "def c(): return 1\n", "def d(): return len\n")
    assert called(names["a"], ["b", "c", "d"]) == {"b", "c"} and called(names["d"], ["a", "b", "c"]) == set()
    assert called(len, ["a"]) == set()


def marks(**points: float) -> list[Mark]:
    made = []
    for name, earned in points.items():
        of = exercise(name)
        status = "right" if earned == of.points else "wrong"
        made.append(Mark(of, earned, status, status, Verdict(name, status, status)))
    return made


def carried(second: dict[str, float], calls: dict[str, set[str]], **first: float) -> tuple[list[Mark], list[str]]:
    asked = []

    def again(name: str) -> Mark:
        asked.append(name)
        return marks(**{name: second[name]})[0]

    return carry_forward(marks(**first), calls, again), asked


def test_only_what_fails_and_calls_something_wrong_is_judged_again():
    calls = {"gspo_token_ratio": {"importance_ratio"}, "policy_loss": {"gspo_token_ratio"}}
    both = {"gspo_token_ratio": 3, "policy_loss": 8}
    found, asked = carried(both, calls, importance_ratio=0, gspo_token_ratio=0, clipped_surrogate=0, policy_loss=0)
    assert [mark.points for mark in found] == [0, 3, 0, 8] and asked == ["gspo_token_ratio", "policy_loss"]
    assert [mark.note for mark in found] == ["", SENTENCE, "", SENTENCE], "through a neighbour that is right, too"
    assert carried(both, calls, importance_ratio=4, gspo_token_ratio=0)[1] == []
    assert carried(both, {}, importance_ratio=0, gspo_token_ratio=0)[1] == []
    assert carried(both, calls, importance_ratio=2.5, gspo_token_ratio=3)[1] == []
    several = {"policy_loss": {"importance_ratio", "aggregate"}}
    found, _ = carried(both, several, importance_ratio=0, aggregate=0, policy_loss=0)
    assert "`importance_ratio` and `aggregate`, since yours are not right yet" in found[2].note


def test_the_better_verdict_counts():
    calls = {"gspo_token_ratio": {"importance_ratio"}}
    found, _ = carried({"gspo_token_ratio": 1}, calls, importance_ratio=0, gspo_token_ratio=1.5)
    assert (found[1].points, found[1].note) == (1.5, "")
    found, _ = carried({"gspo_token_ratio": 1}, calls, importance_ratio=0, gspo_token_ratio=1)
    assert found[1].note == SENTENCE, "at equal points the one that speaks of this function alone"
    lost = mark_exercise(exercise("gspo_token_ratio"), Result(fault=("lost", "")), 7)
    assert carry_forward(marks(importance_ratio=0, gspo_token_ratio=0), calls, lambda name: lost)[1].note == ""


def test_nobody_gets_points_by_a_circle():
    calls = {"importance_ratio": {"gspo_token_ratio"}, "gspo_token_ratio": {"importance_ratio"}}
    found, asked = carried({"gspo_token_ratio": 3}, calls, importance_ratio=0, gspo_token_ratio=0)
    assert [mark.points for mark in found] == [0, 3] and asked == ["gspo_token_ratio"]


class Told(Sandbox):
    """Stands for the sandbox, and keeps what it was asked to run.

    `gspo_token_ratio` is right where the library lends `importance_ratio`, and nothing else ever is.
    """

    def __init__(self):
        self.walls, self.ran = {"limits": ""}, []

    def __call__(self, *settings):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *exception): ...

    def run(self, submission, exercises, seeds, blank, only=(), end=None):
        self.ran.append(([cell.number for cell in submission.cells], sorted(exercises), list(blank), list(only), end))
        back = Returned(calls={"gspo_token_ratio": {"importance_ratio"}}, deadly=["2"], end=99.0)
        for name, one in exercises.items():
            seen = {seed: expectations(one, seed) for seed in seeds}
            right = name == "gspo_token_ratio" and "importance_ratio" in blank
            wrong = one.misconceptions[0].name
            back.results[name] = Result({s: list(told[0] if right else told[1][wrong]) for s, told in seen.items()})
        return back


def test_the_second_run_has_no_more_of_the_library_than_the_exercises_before(tmp_path, monkeypatch):
    sandbox = Told()
    monkeypatch.setattr(grade_module, "Sandbox", sandbox)
    written = {"clipped_surrogate": "def clipped_surrogate(*a): ...", "importance_ratio": WRONG_NEIGHBOUR}
    submit(tmp_path / "class" / "ann" / file_name("05"), "05", gspo_token_ratio=CALLER, **written)
    records = Records(tmp_path / "records")
    grading = grade(tmp_path / "class", 7, records=records)
    first, second = sandbox.ran
    blank = ["aggregate", "cispo_surrogate", "policy_loss", "sapo_surrogate"]
    assert first[1:4] == (["clipped_surrogate", "gspo_token_ratio", "importance_ratio"], blank, [])
    missing = sorted([*blank, "clipped_surrogate", "gspo_token_ratio"])
    assert second[1:] == (missing, ["importance_ratio"], ["gspo_token_ratio"], 99.0)
    assert 2 in first[0] and second[0] == [number for number in first[0] if number != 2], "a deadly cell runs once"

    marked = {mark.exercise.name: mark for mark in grading.graded[0].marks}
    assert (marked["gspo_token_ratio"].points, marked["gspo_token_ratio"].note) == (3, SENTENCE)
    one = results(grading)[0]
    as_json = to_json(grading, [one])["students"]["ann"]["notebooks"][0]["exercises"]["gspo_token_ratio"]
    assert as_json["points"] == 3 and as_json["note"] == SENTENCE
    assert "since yours is not right yet" in page(one, grading, Extras())
    tests = {test["name"]: test for test in json.loads(gradescope_results(grading, one))["tests"]}
    assert tests["gspo_token_ratio"]["score"] == 3 and tests["gspo_token_ratio"]["output"].startswith(SENTENCE)
    kept = records.find(grading.graded[0].submission, 7)
    assert {mark.exercise.name: mark.note for mark in kept.marks}["gspo_token_ratio"] == SENTENCE


@pytest.mark.slow
def test_behind_the_walls(tmp_path):
    """A wrong, an endless and a missing neighbour; a circle; and one that looks for later answers in its second run."""
    endless = WRONG_NEIGHBOUR.replace("    return", "    while True: pass\n    return")
    spy = CALLER.replace("    return", "    print(SPIED)\n    return 2 *")
    look = "import inspect, grpo_lab.objective as o\nSPIED = inspect.getsource(o.clipped_surrogate)[-120:]"
    made = {"wrong": WRONG_NEIGHBOUR, "endless": endless, "missing": "x = 1"}
    for student, source in made.items():
        submit(tmp_path / student / file_name("05"), "05", importance_ratio=source, gspo_token_ratio=CALLER)
    submit(tmp_path / "circle" / file_name("05"), "05", **CIRCLE)
    later = "def clipped_surrogate(*a): ..."
    submit(
        tmp_path / "spy" / file_name("05"), "05", cells=(look,), importance_ratio=WRONG_NEIGHBOUR,
        gspo_token_ratio=spy, clipped_surrogate=later,
    )  # fmt: skip
    grading = grade(tmp_path, 31, limits=Limits(seconds=15.0))
    earned = {one.submission.student: one.points for one in grading.graded}
    assert earned == {**dict.fromkeys(made, 3), "circle": 3, "spy": 0}
    spied = next(one for one in grading.graded if one.submission.student == "spy")
    gspo = next(mark for mark in spied.marks if mark.exercise.name == "gspo_token_ratio")
    shown = "\n".join(part.text for part in gspo.verdict.parts)
    assert gspo.note == SENTENCE and "its body is yours to write" in shown
