"""A stub is the function as it stands, without its body; the answer is what the stub lacks."""

import ast
import inspect
import re

import pytest

from grpo_lab.course import check, stub_source
from grpo_lab.course.exercises import EXERCISES
from grpo_lab.course.release.nbgrader import solution
from grpo_lab.course.stub import solution_body, solution_imports, stub_imports
from grpo_lab.formulas import equations
from tests.course.toys import MEAN

# One for each of the mathematics' modules: notebooks 01 to 05.
NAMES = ("token_logprobs", "group_advantages", "repaired_reward", "kl_estimate", "policy_loss")


SOME = [MEAN, *(EXERCISES[name] for name in NAMES)]


@pytest.mark.parametrize("exercise", [MEAN, *EXERCISES.values()], ids=lambda e: e.name)
def test_a_stub_runs_in_an_empty_notebook_and_keeps_signature_and_docstring(exercise):
    source, namespace = stub_source(exercise), {}
    assert not any("import _" in line for line in stub_imports(exercise))
    exec("\n".join([*stub_imports(exercise), source]), namespace)
    function, reference = namespace[exercise.name], inspect.unwrap(exercise.function)
    assert str(inspect.signature(function)) == str(inspect.signature(reference))
    assert inspect.getdoc(function) == inspect.getdoc(reference)
    args, kwargs = exercise.cases[0].build(0)
    with pytest.raises(NotImplementedError, match=exercise.name):
        function(*args, **kwargs)
    assert not ast.parse(source).body[0].decorator_list
    assert exercise is not MEAN or check(function, MEAN).status == "not started"


@pytest.mark.parametrize("exercise", SOME, ids=lambda e: e.name)
def test_nothing_of_the_answer_is_in_the_stub_and_all_of_it_in_the_solution_which_is_right(exercise):
    stub, body, whole = stub_source(exercise), solution_body(exercise), solution(exercise)
    code = [line.strip() for line in body.splitlines() if len(line.strip()) > 20]
    assert code and not [line for line in code if line in stub]
    assert exercise is not MEAN or "if scale <= 0:" in stub, "the checks of the arguments are given"
    head, end = "    ### BEGIN SOLUTION\n", "    ### END SOLUTION"
    assert whole.endswith(head + body + end) and stub.startswith(whole.removesuffix(head + body + end))
    for e in equations(exercise.function):
        assert rf"\tag{{{e.tag}}}" in stub and not re.search(rf"#.*\({re.escape(e.tag)}\)", stub)
    namespace = {"__name__": "answers"}
    exec("\n".join([*solution_imports(exercise), whole]), namespace)
    assert namespace[exercise.name] is not exercise.function
    assert check(namespace[exercise.name], exercise).right
