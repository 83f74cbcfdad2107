"""The copy of the package that a submission imports has no answers, and everything else."""

import ast
import functools
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import grpo_lab
from grpo_lab.course.exercise import source_of
from grpo_lab.course.exercises import NAMES, all_exercises, earlier_names, find_exercise
from grpo_lab.course.grading.package_copy import make_copy

PACKAGE = Path(grpo_lab.__file__).parent


@pytest.mark.slow
def test_the_copy_that_a_submission_imports_has_no_answers(tmp_path):
    make_copy(tmp_path / "copy", all_exercises().values())
    package = tmp_path / "copy" / "grpo_lab"
    for exercise in all_exercises().values():
        body = functions(package / file_of(exercise.function))[exercise.name].body
        statements = body[1:] if isinstance(body[0], ast.Expr) else body
        assert len(statements) == 1, exercise.name
        assert isinstance(statements[0], ast.Raise), exercise.name
        for mistake in exercise.mistakes:
            wrong = functions(package / file_of(mistake.function)).get(mistake.function.__name__)
            assert wrong is None or isinstance(wrong.body[-1], ast.Raise), f"{exercise.name}: {mistake.name}"
    for path in (package / "course" / "exercises").glob("nb*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        keywords = [node for node in ast.walk(tree) if isinstance(node, ast.keyword)]
        mistakes = [ast.unparse(keyword.value) for keyword in keywords if keyword.arg == "mistakes"]
        assert mistakes, path.name
        assert set(mistakes) == {"()"}, path.name


@pytest.mark.slow
def test_every_input_can_be_built_in_the_copy_that_a_submission_imports(tmp_path):
    """The copy keeps all that `Case.build` calls; it calls no function of an exercise and no helper of mistakes."""
    make_copy(tmp_path / "copy", all_exercises().values())
    code = f"""if True:
        import sys
        sys.path.insert(0, {str(tmp_path / "copy")!r})
        from grpo_lab.course import exercises
        assert exercises.__file__.startswith({str(tmp_path)!r}), exercises.__file__
        for exercise in exercises.all_exercises().values():
            for case in exercise.cases:
                case.build(0), case.build(7)
        print(len(exercises.all_exercises()))"""
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, encoding="utf-8")
    assert done.stdout.strip() == str(len(all_exercises())), done.stderr


def file_of(function) -> Path:
    return Path(inspect.getsourcefile(inspect.unwrap(function))).relative_to(PACKAGE)


@functools.cache  # a file of exercises has the wrong answers of all of them
def functions(path: Path) -> dict[str, ast.FunctionDef]:
    return {n.name: n for n in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(n, ast.FunctionDef)}


def test_an_exercise_calls_only_those_before_it():
    """The grading restores the library's versions of earlier exercises only, after they have been tried."""
    for names in NAMES.values():
        for name in names:
            tree = ast.parse(source_of(find_exercise(name).function))
            called = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            assert (called - {name}) & set(names) <= set(earlier_names(name)), name
