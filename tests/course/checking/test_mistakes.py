"""A mistake is named where it explains the answer, alone or with others."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from grpo_lab.course.checking.mistakes import likely_mistakes, matching_mistake, wrong_outcome
from grpo_lab.course.checking.run_cases import Attempt, expected_outcomes
from grpo_lab.course.exercises import find_exercise
from tests.course.proof.trials import outcomes
from tests.course.small_exercise import MEAN, as_sum, not_masked


def cold_entropy(logits, temperature=1.0):
    p = torch.softmax(logits, -1)  # two mistakes: no temperature, and below a logarithm of zero
    return -(p * torch.log(p)).sum(-1)


def attached_estimate(logp, ref_logp, estimator="k3"):
    d = ref_logp - logp  # all values are right, but two gradients are wrong
    return {"k1": -d, "k2": d**2 / 2, "k3": d.exp() - 1 - d, "k3+": d.exp() - 1 - d}[estimator]


def policy_detached(seq_logp, weights):
    return -(seq_logp.detach() * weights).mean()  # the verdict says that no gradient arrives, and names no mistake


def nonsense(logp, mask):
    return logp.sum(-1) * 0 + 17


TOGETHER = [
    ("token_entropy", cold_entropy, {"temperature-mismatch", "log-of-zero"}),
    ("kl_estimate", attached_estimate, {"reference-not-detached", "k3-plus-is-k3"}),
    ("reinforce_loss", policy_detached, set()),
    ("sequence_logprob", nonsense, set()),
]


@pytest.mark.parametrize(("name", "function", "expected"), TOGETHER)
def test_mistakes_that_occur_together_are_named(name, function, expected):
    task = find_exercise(name)
    attempt = Attempt(task, outcomes(task, function), 0)
    assert matching_mistake(attempt) is None
    assert {mistake.name for mistake in likely_mistakes(attempt)} == expected


def test_a_mistake_that_explains_nothing_is_tried_on_little_more_than_half_of_the_cases(monkeypatch):
    task, tried = find_exercise("sequence_logprob"), Counter()
    monkeypatch.setattr(
        "grpo_lab.course.checking.mistakes.wrong_outcome",
        lambda exercise, mistake, *case: tried.update([mistake.name]) or wrong_outcome(exercise, mistake, *case),
    )
    assert likely_mistakes(Attempt(task, outcomes(task, nonsense), 0)) == {}
    assert 0 < tried["length-mean"] <= len(task.cases) // 2 + 1


def test_mistakes_match_only_if_one_explains_every_wrong_case():
    expected = expected_outcomes(MEAN)
    assert matching_mistake(Attempt(MEAN, expected, 0)) is None
    mixed = [outcomes(MEAN, not_masked)[0], outcomes(MEAN, as_sum)[1]]  # a different mistake on each case
    assert matching_mistake(Attempt(MEAN, mixed, 0)) is None
    without_gradients = [replace(outcome, gradients={"values": None}) for outcome in expected]
    assert matching_mistake(Attempt(MEAN, without_gradients, 0)) is None
