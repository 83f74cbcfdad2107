"""Grading without its processes: what is read of a submission, what its process may import, and what a mark needs."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import grpo_lab
from grpo_lab.course.checking.outcome import outcome_of
from grpo_lab.course.exercises import EXERCISES
from grpo_lab.course.grading.marks import mark_exercise
from grpo_lab.course.grading.sandbox.package_copy import make_copy
from grpo_lab.course.grading.sandbox.returned import Result
from grpo_lab.course.grading.submissions import find_submissions
from grpo_lab.course.release import assignments
from tests.course.submitted import assert_each_is_named, file_name, hand_in_what_is_no_notebook, submit
from tests.course.toys import MEAN, not_masked, scaled_mean

PACKAGE = Path(grpo_lab.__file__).parent


def test_the_copy_that_a_submission_imports_has_no_answers(tmp_path):
    package = make_copy(tmp_path, EXERCISES.values()) / "grpo_lab"
    for exercise in EXERCISES.values():
        source = Path(inspect.getsourcefile(inspect.unwrap(exercise.function))).relative_to(
            Path(grpo_lab.__file__).parent
        )
        body = functions(package / source)[exercise.name].body
        statements = body[1:] if isinstance(body[0], ast.Expr) else body
        assert len(statements) == 1 and isinstance(statements[0], ast.Raise), exercise.name
        for mistake in exercise.misconceptions:
            wrong = functions(package / file_of(mistake.wrong)).get(mistake.wrong.__name__)
            assert wrong is None or isinstance(wrong.body[-1], ast.Raise), f"{exercise.name}: {mistake.name}"
    assert not (package / "course" / "proof").exists()  # what it says of equivalent lines quotes them


@pytest.mark.slow
def test_every_input_can_be_built_in_that_copy(tmp_path):
    """What `build` calls is still there: neither the function of an exercise nor a helper that only mistakes use."""
    make_copy(tmp_path, EXERCISES.values())
    code = f"""if True:
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        from grpo_lab.course import exercises
        assert exercises.__file__.startswith({str(tmp_path)!r}), exercises.__file__
        for exercise in exercises.EXERCISES.values():
            for case in exercise.cases:
                case.build(0), case.build(7)
        print(len(exercises.EXERCISES))"""
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, encoding="utf-8")
    assert done.stdout.strip() == str(len(EXERCISES)), done.stderr


def file_of(function) -> Path:
    return Path(inspect.getsourcefile(inspect.unwrap(function))).relative_to(PACKAGE)


def functions(path: Path) -> dict[str, ast.FunctionDef]:
    return {n.name: n for n in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(n, ast.FunctionDef)}


def test_what_is_no_notebook_gets_a_clear_entry(tmp_path):
    honest = submit(tmp_path / "honest" / file_name("02"))
    hand_in_what_is_no_notebook(tmp_path, honest)
    found = {one.student: one.problem for one in find_submissions(tmp_path, assignments())}
    assert found.pop("honest") == ""
    assert_each_is_named(found)


def outcomes(function, seed):
    return [outcome_of(function, MEAN, index, seed) for index in range(len(MEAN.cases))]


@pytest.mark.parametrize(
    ("visible", "fresh", "points", "hidden"),
    [
        (scaled_mean, scaled_mean, 2, False),
        (scaled_mean, not_masked, 0, True),
        (not_masked, scaled_mean, 0, False),
        (not_masked, not_masked, 0, False),
    ],
)
def test_points_need_the_visible_inputs_and_the_fresh_ones(visible, fresh, points, hidden):
    mark = mark_exercise(MEAN, Result({0: outcomes(visible, 0), 7: outcomes(fresh, 7)}), 7)
    assert (mark.points, mark.hidden) == (points, hidden)
    assert ("Right on the inputs that you see" in mark.message) == hidden


def test_what_cannot_be_judged_earns_nothing_and_ends_nothing():
    assert mark_exercise(MEAN, Result(fault=("endless", "")), 7).status == "endless"
    mark = mark_exercise(MEAN, Result({0: outcomes(scaled_mean, 0)[:1], 7: []}), 7)
    assert (mark.points, mark.status) == (0, "unreadable")
