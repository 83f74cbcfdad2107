"""The file of the grades of a class, and the remarks on a submission."""

import pytest

from grpo_lab.base.checks import InputError
from grpo_lab.course.checking.outcome import Fault, Status
from grpo_lab.course.checking.verdict import PartKind
from grpo_lab.course.grading.class_grades import ClassGrades, GradedSubmission
from grpo_lab.course.grading.grade import grade
from grpo_lab.course.grading.submission import Submission


def test_grades_file_is_read_as_it_was_written(folder, sandbox, tmp_path):
    grades, file = grade(folder, 7), tmp_path / "grades.json"
    file.write_text(grades.as_json(), encoding="utf-8")
    read = ClassGrades.read(file)
    assert read == grades
    verdicts = [verdict for graded in read.submissions for verdict in graded.verdicts.values()]
    parts = [part for verdict in verdicts for part in (*verdict.parts, *verdict.folded_parts)]
    words = {(type(verdict.status), type(verdict.fault)) for verdict in verdicts}
    assert words == {(Status, Fault)} and {type(part.kind) for part in parts} == {PartKind}, "not read as plain text"


@pytest.mark.parametrize("content", ["[]", "{}", '{"students": []}', "not JSON"])
def test_a_file_that_no_grading_of_this_version_wrote_is_refused(tmp_path, content):
    (tmp_path / "grades.json").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match="which no grading wrote"):
        ClassGrades.read(tmp_path / "grades.json")


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
