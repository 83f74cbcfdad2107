"""A stub is the function of the package without its body, and the solution is what the stub lacks."""

import ast
import inspect
import re
from contextlib import nullcontext

import pytest

from grpo_lab.course import check, progress, stub_source
from grpo_lab.course.checking import judge
from grpo_lab.course.exercises import all_exercises, find_exercise
from grpo_lab.course.grading.grade import grade_answer
from grpo_lab.course.grading.run_notebook import ExerciseRun
from grpo_lab.course.stub import imports_of, planted_body, solution_body
from grpo_lab.formulas import read_equations
from grpo_lab.formulas.lines import MARKER
from tests.course.classroom import solution
from tests.course.proof.trials import SEEDS, outcomes
from tests.course.small_exercise import MEAN

# One exercise for each of the notebooks 01 to 05, whose references are in different modules of the mathematics.
NAMES = ("token_logprobs", "group_advantages", "repaired_reward", "kl_estimate", "policy_loss")


BROKEN = [exercise for exercise in all_exercises().values() if exercise.planted]
SOME = [MEAN, *(find_exercise(name) for name in NAMES)]


@pytest.mark.parametrize("exercise", [MEAN, *all_exercises().values()], ids=lambda e: e.name)
def test_a_stub_runs_in_an_empty_notebook_and_keeps_signature_and_docstring(exercise):
    source, namespace = stub_source(exercise), {}
    imports = imports_of(exercise, source)
    assert not any("import _" in line for line in imports)
    exec("\n".join([*imports, source]), namespace)
    function, reference = namespace[exercise.name], inspect.unwrap(exercise.function)
    assert str(inspect.signature(function)) == str(inspect.signature(reference))
    assert inspect.getdoc(function) == inspect.getdoc(reference)
    args, kwargs = exercise.cases[0].build(0)
    with nullcontext() if exercise.planted else pytest.raises(NotImplementedError, match=exercise.name):
        function(*args, **kwargs)
    assert not ast.parse(source).body[0].decorator_list
    assert exercise is not MEAN or check(function, MEAN).status == "not started"


@pytest.mark.parametrize("exercise", SOME, ids=lambda e: e.name)
def test_the_stub_has_no_answer_and_the_solution_is_right(exercise):
    stub, body, whole = stub_source(exercise), solution_body(exercise), solution(exercise)
    code = [line.strip() for line in body.splitlines() if len(line.strip()) > 20]
    assert code
    assert not [line for line in code if line in stub]
    assert exercise is not MEAN or "if scale <= 0:" in stub, "the checks of the arguments are given"
    assert stub.startswith(whole.removesuffix(body))
    for e in read_equations(exercise.function):
        assert rf"\tag{{{e.tag}}}" in stub
        assert not re.search(rf"#.*\({re.escape(e.tag)}\)", stub)
    namespace = {"__name__": "answers"}
    exec("\n".join([*imports_of(exercise, whole), whole]), namespace)
    assert namespace[exercise.name] is not exercise.function
    assert check(namespace[exercise.name], exercise).right


@pytest.mark.slow
@pytest.mark.parametrize("exercise", BROKEN, ids=lambda e: e.name)
def test_unrepaired_code_differs_in_two_lines_and_earns_nothing(exercise):
    """This holds in a check, in progress and in a grading. If one of two planted mistakes is left, it is named."""
    body = solution_body(exercise)
    assert {mistake.name for mistake in exercise.mistakes} >= set(exercise.planted)
    assert planted_body(exercise) != body
    assert not MARKER.search(stub_source(exercise))
    namespace: dict = {}
    stub = stub_source(exercise)
    exec("\n".join([*imports_of(exercise, stub), stub]), namespace)
    unrepaired = namespace[exercise.name]
    verdict = check(unrepaired)
    assert (verdict.status, verdict.points, verdict.misconceptions) == ("not started", 0, ())
    assert "It does what it did" in verdict.message
    assert "yours" in repr(verdict)
    row = next(line for line in str(progress()).splitlines() if exercise.name in line)
    assert f"0 / {exercise.points}" in row
    assert "○ not done yet |" in row
    run = ExerciseRun({seed: outcomes(exercise, unrepaired, seed) for seed in SEEDS})
    points, marked = grade_answer(exercise, run, SEEDS[1])
    assert (points, marked.status) == (0, "not started")
    for name in exercise.planted if len(exercise.planted) > 1 else ():
        left = exercise.mistake(name)
        half = judge(exercise, outcomes(exercise, left.function))
        assert half.status == "wrong"
        assert half.misconceptions == (name,)
        assert 0 < half.points < exercise.points / 2
