"""Two mistakes in one answer: each is named, and nothing is that the answer speaks against."""

from dataclasses import replace

import pytest
import torch

from grpo_lab.course.checking.mistakes import likely, matching
from grpo_lab.course.checking.outcome import expected_outcomes
from grpo_lab.course.exercises import exercise
from tests.course.proof.trials import outcomes
from tests.course.toys import MEAN, as_sum, not_masked


def cold_entropy(logits, temperature=1.0):
    p = torch.softmax(logits, -1)  # no temperature, and a logarithm of zero
    return -(p * torch.log(p)).sum(-1)


def attached_estimate(logp, ref_logp, estimator="k3"):
    d = ref_logp - logp  # every value is right; two gradients are not
    return {"k1": -d, "k2": d**2 / 2, "k3": d.exp() - 1 - d, "k3+": d.exp() - 1 - d}[estimator]


def nonsense(logp, mask):
    return logp.sum(-1) * 0 + 17


TOGETHER = [
    ("token_entropy", cold_entropy, {"temperature-mismatch", "log-of-zero"}),
    ("kl_estimate", attached_estimate, {"reference-not-detached", "k3-plus-is-k3"}),
    ("sequence_logprob", nonsense, set()),
]


def names(function, one):
    got = outcomes(one, function)
    return tuple(m.name for m in matching(one, got, 0)), tuple(m.name for m in likely(one, got, 0))


@pytest.mark.parametrize(("name", "function", "want"), TOGETHER)
def test_mistakes_that_come_together_are_named(name, function, want):
    alone, together = names(function, exercise(name))
    assert not alone
    assert set(together) == want


def test_a_mistake_matches_where_it_differs_and_only_if_the_rest_is_right():
    def named(got):
        return [mistake.name for mistake in matching(MEAN, got, 0)]

    expected = expected_outcomes(MEAN)
    assert named(expected) == []
    mixed = [outcomes(MEAN, not_masked)[0], outcomes(MEAN, as_sum)[1]]  # like one mistake, then like another
    assert named(mixed) == []
    assert named([replace(o, gradients={"values": None}) for o in expected]) == []
