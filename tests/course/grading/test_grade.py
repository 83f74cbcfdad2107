"""The points of a submission, the reason why a cell failed, and the file of the grades."""

import json

import pytest

from grpo_lab.course.grading import grade as grade_module
from grpo_lab.course.grading.downloads import Submission
from grpo_lab.course.grading.grade import ClassGrades, GradedSubmission, grade_answer
from grpo_lab.course.grading.notebook import Cell
from grpo_lab.course.grading.runner import MISSING
from grpo_lab.course.verdict_words import Fault, PartKind, Status
from tests.course.classroom import WRONG_RLOO, rows, run
from tests.course.proof.trials import outcomes
from tests.course.small_exercise import MEAN, not_masked, scaled_mean


def test_fault_in_one_notebook_leaves_other_students_grades(folder, sandbox):
    def fail(cells):
        if "completion_mask" in cells and WRONG_RLOO not in cells and "raise NotImplementedError" not in cells:
            raise RecursionError("as deep as you like")

    sandbox.before_run = fail
    assert run(folder) == 0
    assert rows(folder)["bob"]["points"] == "3"
    assert rows(folder)["alice"]["points"] == ""
    assert "could not be graded (RecursionError: as deep as you like)" in rows(folder)["alice"]["remarks"]


# A grades.json of an earlier version, which stored several fields under other names.
EARLIER_GRADES = """
{"assignment": "01_policy_gradient", "seed": 7, "wall": "docker", "of_class": "5e3a", "variants": {}, "students": [
    {"submission": {
        "student": "bob", "number": "77", "upload": 5, "written": "They help.", "as_text": ["sample_tokens"],
        "of_class": "5e3a", "cells": [{"number": 4, "source": "x", "exercise": ""}]},
     "points": {"token_entropy": 2}, "cells": {"4": "NameError"}, "seed": 7,
     "verdicts": {"token_entropy": {
        "exercise": "token_entropy", "status": "partly", "full": 4, "judged": "judged: the cell that ran as In [4]",
        "properties": {"values": 0.5}, "misconceptions": ["nats"], "fault": "", "parts": [],
        "folded": [{"kind": "say", "text": "1 of 2", "title": "", "rows": []},
                   {"kind": "equation", "text": "h = l", "title": "1.4", "rows": []}]}}}]}
"""


def test_grades_file_of_an_earlier_version_is_read(tmp_path):
    (tmp_path / "grades.json").write_text(EARLIER_GRADES, encoding="utf-8")
    grading = ClassGrades.read(tmp_path / "grades.json")
    (bob,) = grading.students
    verdict = bob.verdicts["token_entropy"]
    assert grading.isolation == "docker"
    assert grading.class_fingerprint == bob.submission.class_fingerprint == "5e3a"
    assert bob.submission.cells == [Cell(4, "x")]
    assert (bob.submission.platform_id, bob.submission.upload_id) == ("77", 5)
    assert bob.submission.written_answer == "They help."
    assert bob.submission.exercises_as_text == ["sample_tokens"]
    assert bob.failed_cells == {"4": "NameError"}
    assert verdict.max_points == 4
    assert verdict.judged_cell == "judged: the cell that ran as In [4]"
    assert verdict.shares == {"values": 0.5}
    assert [part.text for part in verdict.folded_parts] == ["1 of 2", "h = l"]
    assert (verdict.folded_parts[1].tag, verdict.folded_parts[1].title) == ("1.4", "")
    assert (verdict.status, verdict.fault) == (Status.PARTLY, Fault.NONE)
    assert '"status": "partly"' in grading.as_json() and '"fault": ""' in grading.as_json(), "stored as text"
    assert [type(part.kind) for part in verdict.folded_parts] == [PartKind, PartKind]


def test_grades_file_has_the_names_of_the_fields_and_is_read_again(folder, sandbox):
    run(folder)
    file = folder.parent / "out" / "grades.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    names = {key for part in parts_of(content) for key in part}
    assert {"isolation", "class_fingerprint", "failed_cells", "folded_parts", "shares", "max_points"} <= names
    assert not names & {"wall", "of_class", "folded", "properties", "full", "judged", "upload", "written", "as_text"}
    assert json.loads(ClassGrades.read(file).as_json()) == content


def parts_of(content) -> list[dict]:
    """Return all dictionaries in nested JSON."""
    if isinstance(content, list):
        return [part for entry in content for part in parts_of(entry)]
    if isinstance(content, dict):
        return [content, *parts_of(list(content.values()))]
    return []


def test_the_error_of_a_failed_cell_stands_beside_its_function():
    work = Submission("x", cells=[Cell(4, "def f(:", "f"), Cell(5, "def g(): ...", "f")])
    assert grade_module.explain_missing(work, "f", MISSING, {"4": "SyntaxError"}) == "Its cell failed: SyntaxError"
    assert grade_module.explain_missing(work, "f", MISSING, {}) == "You defined `g`; expected a function named `f`."
    assert grade_module.explain_missing(work, "g", MISSING, {"4": "SyntaxError"}) == MISSING


@pytest.mark.parametrize(
    ("why", "kind"),
    [
        ("URLError: <urlopen error [Errno -3] Temporary failure in name resolution> (cell 3, line 2)", "network"),
        ("OSError: [Errno 101] Network is unreachable (cell 3, line 2)", "network"),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", "a process of its own"),
        ("started more than 100 threads or processes", "a process of its own"),
        ("SystemExit: 0 (cell 3, line 1)", "the end of the program"),
        ("ended the whole process (exit code 0)", "the end of the program"),
        ("took longer than the time limit", "no end"),
        ("NameError: name 'x' is not defined (cell 3, line 1)", ""),
    ],
)
def test_remarks_on_a_submission_name_the_kind_of_a_failed_cell(why, kind):
    graded = GradedSubmission(Submission("x"), {}, failed_cells={"3": why})
    assert graded.remarks == [f"cell 3 failed: {kind} ({why})" if kind else f"cell 3 failed: {why}"]


@pytest.mark.parametrize(
    ("visible", "fresh", "points", "hidden"),
    [
        (scaled_mean, scaled_mean, 2, False),
        (scaled_mean, not_masked, 0, True),
        (not_masked, scaled_mean, 0, False),
        (not_masked, not_masked, 0, False),
    ],
)
def test_points_require_right_results_on_visible_and_fresh_inputs(visible, fresh, points, hidden):
    earned, verdict = grade_answer(MEAN, {0: outcomes(MEAN, visible, 0), 7: outcomes(MEAN, fresh, 7)}, 7)
    assert earned == points
    assert ("Right on the inputs that you see" in verdict.message) == hidden
    assert not hidden or all(part.kind == "say" for part in verdict.parts), "nothing of the fresh inputs is shown"


def test_grade_answer_gives_no_points_for_outcomes_that_cannot_be_judged():
    points, verdict = grade_answer(MEAN, "It took longer than the time limit.", 7)
    assert points == 0
    assert verdict.fault == "stopped"
    assert "time limit" in repr(verdict)
    points, verdict = grade_answer(MEAN, {0: outcomes(MEAN, scaled_mean, 0)[:1], 7: []}, 7)
    assert points == 0
    assert "could not be judged" in verdict.message
