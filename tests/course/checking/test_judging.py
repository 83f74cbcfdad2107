"""The verdict on each kind of answer: status, points, explanation, and nothing that gives the reference away."""

import inspect
import re
import warnings
from dataclasses import replace

import pytest
import torch

from grpo_lab.course import check
from grpo_lab.course.checking import judge
from grpo_lab.course.checking.outcome import Outcome, from_bytes, to_bytes
from grpo_lab.course.checking.run_cases import run_student
from grpo_lab.course.exercise import Case
from grpo_lab.course.exercises import find_exercise
from tests.course.proof.trials import outcomes
from tests.course.small_exercise import MEAN, not_masked, scaled_mean, stub


def _padded(seed):
    values = torch.tensor([[1.0, float("nan"), 2.0], [3.0, 1.0, 1.0]]).double()
    return (values, torch.tensor([[True, False, False], [True, True, True]])), {}


SMALL, DRAWN = MEAN.cases


PADDED = Case(_padded, "NaN in the padding", "stability")
MEANS = replace(MEAN, points=10, cases=(SMALL, DRAWN, PADDED))


def by_multiplying(values, mask, scale=1.0):
    return scale * (values * mask).sum(-1) / mask.sum(-1).clamp(min=1)


def zeros(values, mask, scale=1.0):
    return 0 * torch.where(mask, values, 0).sum(-1)


def without_gradient(values, mask, scale=1.0):
    return scaled_mean(values, mask, scale).detach() + zeros(values, mask)


def detached_product(values, mask, scale=1.0):
    return by_multiplying(values, mask, scale).detach() + 0 * values.sum(-1)


@pytest.mark.parametrize(
    ("answer", "missing", "points", "status"),
    [
        (scaled_mean, set(), 10, "right"),
        (by_multiplying, {"stability"}, 9, "partly"),
        (without_gradient, {"gradients"}, 5, "partly"),
        (detached_product, {"gradients", "stability"}, 5, "partly"),
        (zeros, {"values", "gradients", "stability"}, 0, "wrong"),
    ],
)
def test_each_property_has_its_weight_and_values_come_first(answer, missing, points, status):
    """A missing gradient costs more than a failure on extreme inputs."""
    verdict = judge(MEANS, outcomes(MEANS, answer))
    assert {name for name, share in verdict.shares.items() if share < 1} == missing
    assert (verdict.points, verdict.status) == (points, status)
    assert (f"partly right, {points} of 10 points" in repr(verdict)) == (0 < points < 10)


def test_a_run_that_was_stopped_on_an_extreme_input_keeps_the_points_for_values():
    verdict = judge(MEANS, [*outcomes(MEANS, scaled_mean)[:2], Outcome(fault="endless")])
    assert verdict.status == "malformed"
    assert verdict.points == 9


def test_a_rule_that_is_wrong_on_a_few_inputs_earns_up_to_half():
    task = find_exercise("group_advantages")

    def ddof_ignored(rewards, scale="group", ddof=1, eps=1e-4):
        return task.function(rewards, scale, 1, eps)

    verdict = judge(task, outcomes(task, ddof_ignored))
    assert verdict.status == "wrong"
    assert 0.2 * task.points < verdict.points < 0.5 * task.points
    assert f"not right yet, {verdict.points:g} of {task.points} points" in repr(verdict)
    assert judge(MEANS, [outcomes(MEANS, scaled_mean)[0], Outcome(fault="endless")]).points == 2.5


def test_one_wrong_result_of_four_costs_no_more_than_a_rule_that_is_wrong():
    task = find_exercise("read_sequences")

    def who_ended(*args):
        ids, mask, truncated, texts = task.function(*args)
        return ids, mask, ~truncated, texts

    assert 0 < judge(task, outcomes(task, who_ended)).points < 0.5 * task.points


@pytest.mark.parametrize(
    ("name", "mistake"),
    [("token_logprobs", "overflowing-sum"), ("sequence_logprob", "zero-times-infinity"), ("kl_exact", "log-of-zero")],
)
def test_the_formula_as_most_people_write_it_loses_only_the_points_for_extremes(name, mistake):
    task = find_exercise(name)
    answer = task.mistake(mistake).function
    assert judge(task, outcomes(task, answer)).shares.items() >= {"values": 1, "gradients": 1}.items()


def test_a_stub_is_not_started_and_an_unfinished_branch_is_wrong():
    assert check(stub, MEAN).status == "not started"

    def half(values, mask, scale=1.0):
        if scale != 1:
            raise NotImplementedError
        return scaled_mean(values, mask, scale)

    verdict = check(half, MEAN)
    assert verdict.status == "wrong"
    assert "not written yet" in verdict.message
    assert "scale = 2" in repr(verdict)


def test_outcomes_of_another_process_get_the_same_verdict():
    assert check(not_masked, MEAN) == judge(MEAN, from_bytes(to_bytes(run_student(not_masked, MEAN))))
    with pytest.raises(ValueError, match="outcomes has 1 entries; expected 2"):
        judge(MEAN, run_student(not_masked, MEAN)[:1])


def test_the_library_s_own_function_is_no_answer_whatever_the_way_to_it():
    import grpo_lab.policy_gradient as module

    ways = (
        "library(logp, mask)",
        "module.sequence_logprob(logp, mask)",
        "getattr(module, 'sequence_logprob')(logp, mask)",
    )
    notebook = {"library": module.sequence_logprob, "module": module}
    for way in ways:
        exec(f"def sequence_logprob(logp, mask):\n    return {way}", notebook)
        verdict = check(notebook["sequence_logprob"])
        assert verdict.fault == "library"
        assert "the library does not have it" in verdict.message
        assert not verdict.points
    assert check(module.sequence_logprob).fault == check(find_exercise("sequence_logprob").function).fault == "library"
    assert module.sequence_logprob(torch.zeros(1, 2), torch.ones(1, 2).bool()) == 0, "it is back afterwards"


def reference_lines(function) -> set[str]:
    """Return the lines of the reference that are long enough to be recognised as its own."""
    code = inspect.getsource(inspect.unwrap(function)).split('"""')[-1]
    return {line.split("  #")[0].strip() for line in code.splitlines() if len(line.split("  #")[0].strip()) > 25}


@pytest.mark.parametrize(
    "task", [MEAN, find_exercise("format_fault"), find_exercise("rloo_advantages")], ids=lambda e: e.name
)
def test_no_verdict_contains_source_of_the_reference(task):
    answers = [lambda: None, *(m.function for m in task.mistakes)]
    verdicts = [check(answer, task) for answer in answers]
    text = "\n".join(verdict.details + verdict._repr_html_() for verdict in verdicts)
    assert not [line for line in reference_lines(task.function) if line in text]
    assert "secret_" not in text


@pytest.mark.parametrize("seed", [0, 1])
def test_a_mistake_is_recognised_by_what_it_computes(seed):
    for mistake in MEAN.mistakes:
        verdict = check(mistake.function, MEAN, seed=seed)
        assert verdict.status == "wrong"
        assert verdict.misconceptions == (mistake.name,)
        assert verdict.points <= 0.5
        assert mistake.explanation in verdict.message
        assert f"Eq. ({mistake.equation or '1.92'})" in verdict.details


def test_the_smallest_failing_case_is_shown_in_short_and_the_rest_on_request():
    verdict = check(not_masked, MEAN)
    assert repr(verdict).splitlines()[1:] == [
        "The mask is not used.",
        "    input     values = [[1, 3]], mask = [[1, 0]]  (one of two tokens counts)",
        "    yours     [2]",
        "    expected  [1]",
    ]
    assert re.search(r"values, shape \(1, 2\), float64\n\s+1.0000  3.0000", verdict.details)
    assert r"y_b = \frac{s}{n_b}" in verdict.details
    assert "0 of 2 cases right" in verdict.details
    page = verdict._repr_html_()
    assert page.index("The mask is not used.") < page.index("<details>") < page.index("1.0000  3.0000")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda y, x: y + 0.25, "off by a constant: +0.25"),
        (lambda y, x: y * (1 + 2e-6), "off by very little"),
        (
            lambda y, x: 2 * y - y.detach(),
            "The value is right, but the gradient is not. The gradient of values: It is off by a",
        ),
        (lambda y, x: 2 * y.detach() - y, "The sign is flipped"),
        (lambda y, x: y.detach() + 0 * x.sum(), "No gradient arrives at values"),
    ],
)
def test_verdict_describes_wrong_numbers_if_no_known_mistake_matches(change, words):
    def mine(values, mask, scale=1.0):
        return change(scaled_mean(values, mask, scale), values)

    verdict = check(mine, MEAN)
    assert not verdict.right
    assert not verdict.misconceptions
    assert words in verdict.message


def test_verdict_names_a_factor_for_one_number_only_if_all_cases_have_it():
    def message_about(change):
        def reinforce_loss(seq_logp, weights):
            return change(-(seq_logp * weights.detach()).mean(), len(seq_logp))

        return check(reinforce_loss).message

    assert "off by a constant factor: 3 times" in message_about(lambda value, n: 3 * value)
    assert "factor" not in message_about(lambda value, n: value * (2 + n) - n)


def test_a_sum_over_all_axes_is_named_and_no_axis_of_size_one_is_asked_for():
    def token_entropy(logits, temperature=1.0):
        logp = torch.log_softmax(logits / temperature, -1)
        return -(logp.exp() * logp).sum()

    message = str(check(token_entropy))
    assert "without an axis" in message
    assert "keepdim" not in message


def test_verdicts_of_every_exercise_name_the_general_mistakes(recwarn):
    """Such mistakes take one choice for another, ignore an argument, or take a mean for a sum.

    If none fits, the verdict says for which choices of an argument the answer is wrong.
    """

    def batch_forgotten(rewards, scale="group", ddof=1, eps=1e-4):
        centred = rewards - rewards[:, :1]
        centred = centred - centred.mean(-1, keepdim=True)
        std = (centred.square().sum(-1, keepdim=True) / (rewards.shape[1] - ddof)).sqrt()
        return centred if scale == "none" else centred / (std + eps)

    def scale_ignored(rewards, scale="group", ddof=1, eps=1e-4):
        warnings.warn("std(): degrees of freedom is <= 0", UserWarning, stacklevel=2)
        return (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True, correction=ddof) + eps)

    def mean_for_sum(seq_logp, rewards):
        return (seq_logp.exp().detach() * rewards * seq_logp).mean()

    def temperature_times(logits, temperature=1.0):
        logp = (logits * temperature).log_softmax(-1)
        return -(logp.exp() * logp).sum(-1)

    def k1_negated(logp, ref_logp, estimator="k3"):
        d = ref_logp.detach() - logp
        k2, k3 = d**2 / 2, d.exp() - 1 - d
        return {"k1": d, "k2": k2, "k3": k3, "k3+": k2 - k2.detach() + k3.detach()}[estimator]

    for name, function, expected in [
        ("group_advantages", batch_forgotten, "Where `scale` is 'batch', your result is that of 'group'."),
        ("group_advantages", scale_ignored, "First: `scale` makes no difference to your result"),
        ("score_function_objective", mean_for_sum, "divided by the size of axis 0 of `seq_logp`"),
        ("token_entropy", temperature_times, "as if `temperature` were 1 / temperature"),
        ("pass_at_k", lambda n, c, k: c / n, "`k` makes no difference to your result: it is as if it were always 1."),
        ("kl_estimate", k1_negated, "It is wrong where `estimator` is 'k1', and right elsewhere. The sign is flipped."),
    ]:
        verdict = check(function, name)
        assert expected in verdict.message, verdict.message
        assert not verdict.right, verdict.message
    assert not recwarn.list, "what torch warns of does not show through"
