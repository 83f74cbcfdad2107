"""The points of a submission, and the reason why a function has none."""

import pytest

from grpo_lab.course.grading.grade import explain_undefined, grade_answer
from grpo_lab.course.grading.messages import UNDEFINED
from grpo_lab.course.grading.notebook_run import ExerciseRun, NotebookRun
from grpo_lab.course.grading.submission import Cell, Submission
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
    assert not hidden or all(part.kind == "say" for part in verdict.parts), "nothing of the fresh inputs is shown"


def test_grade_answer_gives_no_points_for_outcomes_that_cannot_be_judged():
    points, verdict = grade_answer(MEAN, ExerciseRun(problem="It took longer than the time limit."), 7)
    assert points == 0
    assert verdict.fault == "stopped"
    assert "time limit" in repr(verdict)
    points, verdict = grade_answer(MEAN, ExerciseRun({0: outcomes(MEAN, scaled_mean, 0)[:1], 7: []}), 7)
    assert points == 0
    assert "could not be judged" in verdict.message
