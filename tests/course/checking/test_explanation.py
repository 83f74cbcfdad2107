"""A wrong answer is explained by a known mistake, or else by its numbers."""

import re
import warnings

import pytest
import torch

from grpo_lab.course import check
from tests.course.small_exercise import MEAN, not_masked, scaled_mean


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
