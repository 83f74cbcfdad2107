"""The formula as most people write it earns the points for values; what it does with extremes costs only theirs."""

import pytest

from grpo_lab.course.checking.compare import equal, equal_values
from grpo_lab.course.checking.outcome import expected_outcomes, outcome_of
from grpo_lab.course.exercises import exercise


def group_advantages(rewards, scale="group", ddof=1, eps=1e-4):
    centred = rewards - rewards.mean(1, keepdim=True)
    if scale == "none":
        return centred
    if scale == "batch":
        return centred / (rewards.std(correction=ddof) + eps)
    return centred / (rewards.std(1, keepdim=True, correction=ddof) + eps)


def process_advantages(step_rewards, step_mask, eps=1e-4):
    n = step_mask.sum((1, 2), keepdim=True)
    centred = step_mask * (step_rewards - (step_mask * step_rewards).sum((1, 2), keepdim=True) / n)
    std = ((centred**2).sum((1, 2), keepdim=True) / (n - 1)).sqrt()
    return (centred / (std + eps)).flip(-1).cumsum(-1).flip(-1)


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


EVERYDAY = (group_advantages, process_advantages, token_logprobs, token_entropy, sequence_logprob, kl_exact)


@pytest.mark.parametrize("answer", EVERYDAY, ids=lambda answer: answer.__name__)
def test_values_are_right_and_an_extreme_is_not(answer):
    one = exercise(answer.__name__)
    pairs = [(outcome_of(answer, one, i, 0), right) for i, right in enumerate(expected_outcomes(one, 0))]
    by_kind = {"values": [], "stability": []}
    for case, (got, right) in zip(one.cases, pairs, strict=True):
        by_kind[case.tests].append((case.label, got, right))
    assert [label for label, got, right in by_kind["values"] if not equal(got, right, one)] == []
    assert not all(equal_values(got, right, one) for _, got, right in by_kind["stability"])
