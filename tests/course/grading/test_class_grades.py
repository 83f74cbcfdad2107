"""The file of the grades of a class, and the remarks on a submission."""

import json

import pytest

from grpo_lab.course.checking.outcome import Fault, Status
from grpo_lab.course.checking.verdict import PartKind
from grpo_lab.course.grading.class_grades import ClassGrades, GradedSubmission
from grpo_lab.course.grading.messages import Cell
from grpo_lab.course.grading.submission import Submission
from tests.course.classroom import run

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
    grades = ClassGrades.read(tmp_path / "grades.json")
    (bob,) = grades.submissions
    verdict = bob.verdicts["token_entropy"]
    assert grades.isolation == "docker"
    assert grades.class_fingerprint == bob.submission.class_fingerprint == "5e3a"
    assert bob.submission.cells == [Cell(4, "x")]
    assert (bob.submission.platform_id, bob.submission.upload_id) == ("77", 5)
    assert bob.submission.written_answer == "They help."
    assert bob.submission.exercises_as_text == ["sample_tokens"]
    assert bob.failed_cells == {4: "NameError"}
    assert verdict.max_points == 4
    assert verdict.judged_cell == "judged: the cell that ran as In [4]"
    assert verdict.shares == {"values": 0.5}
    assert [part.text for part in verdict.folded_parts] == ["1 of 2", "h = l"]
    assert (verdict.folded_parts[1].tag, verdict.folded_parts[1].title) == ("1.4", "")
    assert (verdict.status, verdict.fault) == (Status.PARTLY, Fault.NONE)
    assert '"status": "partly"' in grades.as_json() and '"fault": ""' in grades.as_json(), "stored as text"
    assert [type(part.kind) for part in verdict.folded_parts] == [PartKind, PartKind]


def test_grades_file_has_the_names_of_the_fields_and_is_read_again(folder, sandbox):
    run(folder)
    file = folder.parent / "out" / "grades.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    names = {key for part in parts_of(content) for key in part}
    current = {"assignment_stem", "submissions", "isolation", "class_fingerprint", "failed_cells", "folded_parts"}
    assert current | {"shares", "max_points"} <= names
    assert not names & {"assignment", "students", "wall", "of_class", "folded", "properties", "full", "judged"}
    assert not names & {"upload", "written", "as_text"}
    assert json.loads(ClassGrades.read(file).as_json()) == content


def parts_of(content) -> list[dict]:
    """Return all dictionaries in nested JSON."""
    if isinstance(content, list):
        return [part for entry in content for part in parts_of(entry)]
    if isinstance(content, dict):
        return [content, *parts_of(list(content.values()))]
    return []


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
    graded = GradedSubmission(Submission("x"), {}, failed_cells={3: why})
    assert graded.remarks == [f"cell 3 failed: {kind} ({why})" if kind else f"cell 3 failed: {why}"]
