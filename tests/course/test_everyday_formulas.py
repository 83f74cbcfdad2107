"""The formula as most people write it earns the points for values; what it does with extremes costs only theirs."""

import pytest

from grpo_lab.course.checking.compare import equal, equal_values
from grpo_lab.course.checking.outcome import expected_outcomes, outcome_of
from grpo_lab.course.exercises import exercise


def token_logprobs(logits, token_ids, temperature=1.0):
    z = logits / temperature
    return z.gather(-1, token_ids[..., None])[..., 0] - z.exp().sum(-1).log()


def token_entropy(logits, temperature=1.0):
    p = (logits / temperature).softmax(-1)
    return -(p * p.log()).sum(-1)


def sequence_logprob(logp, mask):
    return (logp * mask).sum(-1)


def kl_exact(logits, ref_logits):
    p, q = logits.softmax(-1), ref_logits.softmax(-1)
    return (p * (p / q).log()).sum(-1)


EVERYDAY = (token_logprobs, token_entropy, sequence_logprob, kl_exact)


@pytest.mark.parametrize("answer", EVERYDAY, ids=lambda answer: answer.__name__)
def test_values_are_right_and_an_extreme_is_not(answer):
    one = exercise(answer.__name__)
    pairs = [(outcome_of(answer, one, i, 0), right) for i, right in enumerate(expected_outcomes(one, 0))]
    by_kind = {"values": [], "stability": []}
    for case, (got, right) in zip(one.cases, pairs, strict=True):
        by_kind[case.tests].append((case.label, got, right))
    assert [label for label, got, right in by_kind["values"] if not equal(got, right, one)] == []
    assert not all(equal_values(got, right, one) for _, got, right in by_kind["stability"])
