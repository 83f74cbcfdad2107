"""`using` replaces the library's functions everywhere and restores them, which a real training run confirms.

A check and the grading also replace functions: an answer calls the library's versions of earlier exercises, so the
student's own versions of them, missing or wrong, neither cost nor earn points.
"""

import sys
import types

import pytest
import torch

import grpo_lab.kl
import grpo_lab.objective
from grpo_lab.course import check, using
from grpo_lab.course.exercises import earlier_names, find_exercise
from grpo_lab.course.grading.grade import grade
from grpo_lab.course.stub import imports_of, stub_source
from grpo_lab.kl import kl_estimate as reference
from grpo_lab.logprobs import token_logprobs
from grpo_lab.objective import policy_loss
from grpo_lab.toys.sorting import make_prompts, repaired_reward, surrogate_loss, train_sorting
from tests.course.classroom import file_name, submit
from tests.course.small_exercise import copy_of
from tests.support.bubblewrap import needs_bubblewrap


def kl_estimate(logp, ref_logp, estimator="k3"):
    d = ref_logp.detach() - logp
    return {"k1": lambda: -d, "k2": lambda: d.square() / 2, "k3": lambda: d.expm1() - d}[estimator]()


def swapped_kl(logp, ref_logp, estimator="k3"):
    return kl_estimate(ref_logp, logp, estimator)


def loss() -> torch.Tensor:
    logp = torch.tensor([[-1.0, -2.0]]).double().requires_grad_()
    mask, ref = torch.ones(1, 2).bool(), torch.zeros(1, 2).double()
    return policy_loss(logp, torch.ones(1).double(), mask, ref_logp=ref, beta=0.5)[0]


def imported_functions() -> list:
    return [grpo_lab.kl.kl_estimate, grpo_lab.objective.loss.kl_estimate]


def test_references_come_back_after_an_error_and_after_nested_blocks():
    right = loss()
    with pytest.raises(ZeroDivisionError), using(kl_estimate=swapped_kl):
        raise ZeroDivisionError
    assert all(function is reference for function in imported_functions())
    with using(kl_estimate=swapped_kl) as outer:
        assert all(function is not reference for function in imported_functions())
        wrong = loss()
        assert wrong != right
        assert repr(outer) == "your kl_estimate was called 1 time"
        with using(kl_estimate=kl_estimate) as inner:
            assert loss() == right
        assert loss() == wrong
    assert (outer.calls, inner.calls) == ({"kl_estimate": 2}, {"kl_estimate": 1})
    assert all(function is reference for function in imported_functions())


def test_a_function_that_another_one_of_the_notebook_calls_is_counted():
    """The call goes through the notebook's own name, where `using` finds no function of the library to replace."""
    notebook = {"torch": torch}
    arguments = "values, mask, loss_type, max_completion_length=None, num_items=None"
    exec(f"def aggregate({arguments}):\n    return values.mean()", notebook)
    exec("def kl_estimate(logp, ref_logp, estimator='k3'):\n    return ref_logp - logp", notebook)
    settings = (
        "loss_type='grpo', importance_sampling_level='token', epsilon=0.2, epsilon_high=None, delta=None, beta=0.0"
    )
    settings += ", kl_estimator='k3', kl_bias_correction=False, max_completion_length=None, num_items=None, **settings"
    body = f"def policy_loss(logp, advantages, mask, old_logp=None, ref_logp=None, *, {settings}):\n    "
    for call, expected in {
        "aggregate(logp, mask, 'grpo')": "your aggregate was called 1 time",
        "logp.sum()": "your aggregate was not called: the library's policy_loss calls it, and your policy_loss "
        "does not",
    }.items():
        exec(f"{body}return {call}, {{}}", notebook)
        mine = {name: notebook[name] for name in ("aggregate", "policy_loss")}
        with using(**mine) as report:
            grpo_lab.objective.loss.policy_loss(torch.zeros(1, 2), torch.ones(1), torch.ones(1, 2).bool())
        assert expected in repr(report)
        assert "your policy_loss was called 1 time" in repr(report)
        assert all(notebook[name] is function for name, function in mine.items())
    with using(kl_estimate=notebook["kl_estimate"]) as report:
        pass
    assert repr(report) == "your kl_estimate was not called: what ran here does not need it"


def test_a_module_imported_within_the_block_gets_the_function_and_gives_it_back(monkeypatch):
    name = "grpo_lab.made_up"
    with using(kl_estimate=swapped_kl):
        module = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec("from grpo_lab.kl import kl_estimate as estimate", vars(module))
        assert module.estimate is grpo_lab.kl.kl_estimate is not reference
    assert module.estimate is reference


def test_using_refuses_unknown_exercises_and_other_signatures():
    with pytest.raises(ValueError, match="exercise is 'kl_estimates'; expected one of 'token_logprobs', "):
        using(kl_estimates=kl_estimate)
    with pytest.raises(ValueError, match=r"it takes \(logp, ref\), and \(logp, ref_logp, "):
        using(kl_estimate=lambda logp, ref: logp)


def test_a_check_within_the_block_compares_with_the_references():
    in_reward = find_exercise("kl_in_reward")
    with using(kl_estimate=swapped_kl):
        assert check(copy_of(in_reward.function), in_reward).right
        assert all(function is not reference for function in imported_functions())
    assert all(function is reference for function in imported_functions())


def run():
    prompts = make_prompts(numbers=4, length=3)
    return train_sorting(prompts, seeds=(0,), rounds=4, num_prompts=8, num_generations=4, eval_every=2)


def minus_loss(logp, old_logp, advantages, loss="clipped", epsilon=0.2):
    return surrogate_loss(logp, old_logp, -advantages, loss, epsilon)


def same_run(a, b) -> bool:
    return torch.equal(a.losses, b.losses) and all(torch.equal(x, y) for x, y in zip(a.policy, b.policy, strict=True))


def reversed_reward(prompts, responses):
    return 1 - repaired_reward(prompts, responses)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("surrogate_loss", copy_of(surrogate_loss), minus_loss),
        ("repaired_reward", copy_of(repaired_reward), reversed_reward),
    ],
)
def test_a_training_run_inside_using_calls_the_student_s_function(name, right, wrong):
    """The run calls one of these functions by name; the other is the default of an argument."""
    reference = run()
    for function, agrees in ((right, True), (wrong, False)):
        with using(**{name: function}) as report:
            assert same_run(run(), reference) == agrees
            assert report.calls[name] > 4
    assert same_run(run(), reference)


CALLER = """
def token_entropy(logits, temperature=1.0):
    words = (torch.full(logits.shape[:-1], word) for word in range(logits.shape[-1]))
    logp = torch.stack([token_logprobs(logits, word, temperature) for word in words], -1)
    return -(logp.exp() * logp).sum(-1)
"""
WRONG_NEIGHBOUR = """
def token_logprobs(logits, token_ids, temperature=1.0):
    return logits.gather(-1, token_ids[..., None])[..., 0]
"""
# With `CALLER`, each of two functions is computed from the other one.
CIRCLE = """
def token_logprobs(logits, token_ids, temperature=1.0):
    return token_entropy(logits, temperature)
"""
# Stores the library's version of an earlier exercise when it is called, to use it as the answer to that exercise.
THIEF = (
    CALLER.replace("    words =", "    globals()['stolen'] = token_logprobs\n    words =")
    + """
def token_logprobs(logits, token_ids, temperature=1.0):
    return stolen(logits, token_ids, temperature)
"""
)


def stub(name: str) -> str:
    source = stub_source(find_exercise(name))
    return "\n".join([*imports_of(find_exercise(name), source), source])


@pytest.mark.parametrize("neighbour", [stub("token_logprobs"), WRONG_NEIGHBOUR, "token_logprobs = None"])
def test_a_check_calls_the_library_s_version_of_an_earlier_exercise(neighbour):
    notebook: dict = {"torch": torch}
    exec(f"{neighbour}\n{CALLER}", notebook)
    own = notebook["token_logprobs"]
    assert check(notebook["token_entropy"]).right
    assert notebook["token_logprobs"] is own is not token_logprobs
    if callable(own):
        assert not check(own).right


def test_a_check_calls_the_notebook_s_version_of_a_later_exercise():
    """Otherwise two functions that are each computed from the other one would both be right."""
    notebook: dict = {"torch": torch}
    exec(f"{CIRCLE}{CALLER}", notebook)
    assert check(notebook["token_logprobs"]).points == 0
    assert check(notebook["token_entropy"]).right
    assert earlier_names("token_logprobs") == earlier_names("no such exercise") == ()


@needs_bubblewrap
@pytest.mark.slow
def test_grading_supplies_earlier_functions_and_gives_no_points_for_them(tmp_path):
    submit(tmp_path / "blank" / file_name("01"), "01", token_entropy=CALLER)
    submit(tmp_path / "wrong" / file_name("01"), "01", token_entropy=CALLER, token_logprobs=WRONG_NEIGHBOUR)
    submit(tmp_path / "circle" / file_name("01"), "01", token_entropy=CALLER, token_logprobs=CIRCLE)
    submit(tmp_path / "thief" / file_name("01"), "01", token_entropy=THIEF)
    earned = {
        graded.submission.student: {name: points for name, points in graded.points.items() if points}
        for graded in grade(tmp_path, 31, jobs=2).submissions
    }
    points = find_exercise("token_entropy").points
    partly = earned["wrong"].pop("token_logprobs", 0)
    assert partly < find_exercise("token_logprobs").points
    assert earned == {student: {"token_entropy": points} for student in earned}
