"""The command `grade`: what it writes and prints, a second grading, an interrupt, and the points of each answer.

The notebooks run in this process, in a stand-in for the sandbox. The sandbox itself is tested in test_run_notebook.py.
"""

import csv
import re

import pytest

from grpo_lab.base.checks import InputError
from grpo_lab.course.grading import grade as grade_module
from grpo_lab.course.grading.grade import explain_undefined, grade_answer, page_names
from grpo_lab.course.grading.messages import UNDEFINED, Cell
from grpo_lab.course.grading.run_notebook import ExerciseRun, NotebookRun
from grpo_lab.course.grading.submission import Submission
from tests.course.classroom import POINTS, RIGHT, WRONG_RLOO, file_name, page, rows, run, submit, table
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


def test_the_error_of_a_failed_cell_stands_beside_its_function():
    work = Submission("x", cells=[Cell(4, "def f(:", "f"), Cell(5, "def g(): ...", "f")])

    def problem_of(name: str, failed_cells: dict[int, str]) -> str:
        run = NotebookRun({name: ExerciseRun(problem=UNDEFINED)}, failed_cells)
        return explain_undefined(work, name, run).problem

    assert problem_of("f", {4: "SyntaxError"}) == "Its cell failed: SyntaxError"
    assert problem_of("f", {}) == "You defined `g`; expected a function named `f`."
    assert problem_of("g", {4: "SyntaxError"}) == UNDEFINED


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
    run = ExerciseRun({0: outcomes(MEAN, visible, 0), 7: outcomes(MEAN, fresh, 7)})
    earned, verdict = grade_answer(MEAN, run, 7)
    assert earned == points
    assert ("Right on the inputs that you see" in verdict.message) == hidden
    assert not hidden or all(part.kind == "sentences" for part in verdict.parts), "nothing of the fresh inputs is shown"


def test_grade_answer_gives_no_points_for_outcomes_that_cannot_be_judged():
    points, verdict = grade_answer(MEAN, ExerciseRun(problem="It took longer than the time limit."), 7)
    assert points == 0
    assert verdict.fault == "stopped"
    assert "time limit" in repr(verdict)
    points, verdict = grade_answer(MEAN, ExerciseRun({0: outcomes(MEAN, scaled_mean, 0)[:1], 7: []}), 7)
    assert points == 0
    assert "could not be judged" in verdict.message


def test_points_have_the_same_sum_in_every_table_and_page(folder, sandbox, capsys):
    assert run(folder) == 0
    assert {name: (row["points"], row["out of"]) for name, row in rows(folder).items()} == {
        "alice": ("23", "23"), "bob": ("3", "23"), "carol": ("0", "23"),
    }  # fmt: skip
    assert sum(POINTS.values()) == 23
    assert "<strong>23 of 23 points.</strong>" in page(folder, "students/alice.html")
    assert "8.67 of 23 points on average of 3" in capsys.readouterr().out
    assert (folder.parent / "out" / "grades.csv").read_bytes().startswith(b"\xef\xbb\xbf"), "Excel needs it"


@pytest.mark.slow
def test_regraded_student_replaces_only_their_own_entry(folder, sandbox, tmp_path, capsys):
    """Bob alone is graded again, into the same folder: the other students stay, and so does the earlier table."""
    run(folder)
    first, alice = (folder.parent / "out" / "grades.csv").read_bytes(), page(folder, "students/alice.html")
    (folder.parent / "out" / "students" / "my notes.html").write_text("mine", encoding="utf-8")
    (folder.parent / "out" / "grades-before-2.csv").write_text("older", encoding="utf-8")  # number 1 is free again
    submit(tmp_path / "again" / "bob" / file_name("01"), **RIGHT)
    run(tmp_path / "again", output=folder.parent / "out")
    assert {name: row["points"] for name, row in rows(folder).items()} == {"alice": "23", "bob": "23", "carol": "0"}
    assert (folder.parent / "out" / "grades-before-1.csv").read_bytes() == first
    assert page(folder, "grades-before-2.csv") == "older"
    assert page(folder, "students/alice.html") == alice
    assert page(folder, "students/my notes.html") == "mine"
    text = page(folder, "class.html")
    assert "3 students" in text
    assert all(f'href="students/{name}.html"' in text for name in ("alice", "bob", "carol"))
    submit(tmp_path / "other" / "bob" / file_name("02"), "02")
    with pytest.raises(InputError, match="holds the grades of 01_policy.* name another folder with --output"):
        run(tmp_path / "other", output=folder.parent / "out")
    (folder.parent / "out" / "grades.json").write_text("[", encoding="utf-8")
    with pytest.raises(InputError, match="which no grading wrote"):
        run(tmp_path / "again", output=folder.parent / "out")
    assert rows(folder)["bob"]["points"] == "23"


def test_interrupt_ends_grading_and_writes_nothing(folder, sandbox):
    def interrupt(cells):
        raise KeyboardInterrupt

    sandbox.before_run = interrupt
    with pytest.raises(KeyboardInterrupt):
        run(folder)
    assert not (folder.parent / "out").exists()


@pytest.mark.slow
def test_grading_the_folder_of_one_student_grades_that_student(folder, sandbox, capsys):
    """Without `--output`, the grades of `class/carol` alone go into the folder of the class's grades."""
    run(folder, output=None)
    submit(folder / "carol" / file_name("01"), **RIGHT)
    submit(folder / "carol" / file_name("01").replace(".ipynb", " (1).ipynb"), **RIGHT)
    run(folder / "carol", output=None)
    written = list(csv.DictReader((folder.parent / "class-grades" / "grades.csv").open(encoding="utf-8-sig")))
    assert [(row["student"], row["points"]) for row in written] == [("alice", "23"), ("bob", "3"), ("carol", "23")]
    assert not (folder / "carol-grades").exists()


def test_grading_prints_one_line_per_student(folder, sandbox, capsys):
    (folder / "zoe.ipynb").write_text("{", encoding="utf-8")
    run(folder)
    lines = [line for line in capsys.readouterr().err.splitlines() if " of 4: " in line]
    assert sorted(re.sub(r".* of 4: |, \d+ s", "", line) for line in lines) == [
        "alice, 23 points", "bob, 3 points", "carol, 0 points", "zoe, not graded",
    ]  # fmt: skip


def test_the_page_of_a_student_has_a_name_that_every_file_system_takes():
    names = page_names(["\U00020000" * 200, "a/../b", "A/../B", "x" * 400])
    assert len(set(map(str.lower, names))) == 4
    assert all(len(name.encode()) < 200 for name in names)
    assert not any("/" in name for name in names)


def test_grading_without_a_sandbox_requires_trust(folder, sandbox, monkeypatch, capsys):
    monkeypatch.setattr(grade_module, "strongest_isolation", lambda trust: "none")
    assert run(folder, trust=True) == 0
    assert "note: without a sandbox" in capsys.readouterr().out


def test_a_notebook_of_another_assignment_changes_no_other_student_s_sum(folder, sandbox):
    submit(folder / "zoe" / file_name("02"), "02")
    submit(folder / "bob" / file_name("02"), "02")
    run(folder)
    written_rows = rows(folder)
    assert {row["out of"] for row in written_rows.values()} == {"23"}
    assert written_rows["zoe"]["points"] == ""
    assert "it is for 02_baselines_and_advantages, which is not graded here" in written_rows["zoe"]["remarks"]
    assert "02_baselines_and_advantages, which is not graded here, and was left out" in written_rows["bob"]["remarks"]
    run(folder, number="02", output=folder.parent / "out" / "02")
    assert "rloo_advantages" in table(folder, "02/grades.csv")[-1]
    with pytest.raises(InputError, match="assignment is '9'"):
        run(folder, number="9")
