"""The exercises of notebook 04."""

from functools import partial

import torch

from grpo_lab.course.exercise import (
    INF,
    Draws,
    Exercise,
    drawn_case,
    drawn_stability_case,
    f64,
    handwritten_case,
    padded,
    stability_case,
    wrong_function,
    wrong_lines,
)
from grpo_lab.kl import kl_estimate, kl_exact, kl_in_reward

NAMES = ("k1", "k2", "k3", "k3+")
HALF, QUARTER = f64([[0.5]]).log(), f64([[0.25]]).log()


def _updated_logps(draws: Draws, name: str) -> tuple:
    return *draws.updated_logps(2, 3), name


KL_ESTIMATE = Exercise(
    function=kl_estimate,
    cases=(
        *(handwritten_case(f"{name}, twice as likely as under the reference", HALF, QUARTER, name) for name in NAMES),
        handwritten_case("k1, half as likely as under the reference", QUARTER, HALF, "k1"),
        handwritten_case("k3, half as likely as under the reference", QUARTER, HALF, "k3"),
        handwritten_case("k3+, half as likely as under the reference", QUARTER, HALF, "k3+"),
        handwritten_case("no distance, and no estimator named", f64([[-1.0, -2.0]]), f64([[-1.0, -2.0]])),
        *(drawn_case(name, partial(_updated_logps, name=name)) for name in NAMES),
        *(
            stability_case(f"{name}, 200 nats apart", f64([[-0.5, -200.5]]), f64([[-200.5, -0.5]]), name)
            for name in NAMES
        ),
    ),
    gradient_of=("logp", "ref_logp"),
    mistakes=(
        wrong_lines("kl-reversed", {"4.7": "d = logp - ref_logp.detach()"}),
        wrong_lines("kl-reversed-in-k3", {"4.10": "k3 = (-d).expm1() + d"}),
        wrong_lines("difference-clamped", {"4.7": "d = (ref_logp.detach() - logp).clamp(-20, 20)"}),
        wrong_function(
            "value-clamped",
            lambda logp, ref_logp, estimator="k3": kl_estimate(logp, ref_logp, estimator).clamp(-10, 10),
        ),
        wrong_lines("reference-not-detached", {"4.7": "d = ref_logp - logp"}),
        wrong_lines("k2-not-halved", {"4.9": "k2 = d.square()"}),
        wrong_lines("k1-as-loss", {"4.11": "k3_plus = k1 - k1.detach() + k3.detach()"}),
        wrong_lines("k3-plus-is-k3", {"4.11": "k3_plus = k3"}),
        wrong_lines("one-forgotten", {"4.10": "k3 = d.exp() - d"}),
        wrong_lines("k3-plus-is-k2", {"4.11": "k3_plus = k2"}),
        wrong_lines("k3-plus-exchanged", {"4.11": "k3_plus = k3 - k3.detach() + k2.detach()"}),
    ),
)


KL_EXACT = Exercise(
    function=kl_exact,
    cases=(
        handwritten_case("a coin, from 1/4 and 3/4", f64([[[1.0, 1.0]]]), f64([[[1.0, 3.0]]]).log()),
        handwritten_case("1/4 and 3/4, from a coin", f64([[[0.25, 0.75]]]).log(), f64([[[0.5, 0.5]]]).log()),
        handwritten_case("the same policy, all logits 1 higher", f64([[[1.0, 3.0]]]), f64([[[0.0, 2.0]]])),
        handwritten_case("two positions", f64([[[0.9, 0.1], [0.5, 0.5]]]).log(), f64([[[0.5, 0.5], [0.9, 0.1]]]).log()),
        drawn_case(
            "equal sizes on all axes",
            lambda draws: (draws.normal(3, 3, 3, scale=2.0), draws.normal(3, 3, 3, scale=2.0)),
        ),
        handwritten_case("a rare word, far rarer under the reference", f64([[[0.0, -10.0]]]), f64([[[0.0, -100.0]]])),
        handwritten_case(
            "a word of probability 1.5e-8, and a reference without it",
            f64([[[0.0, -18.0]]]),
            f64([[[0.0, -700.0]]]),
        ),
        drawn_case(
            "many rare words", lambda draws: (draws.normal(2, 3, 9, scale=8.0), draws.normal(2, 3, 9, scale=40.0))
        ),
        stability_case("a policy that is certain", f64([[[800.0, 0.0]]]), f64([[[0.0, 0.0]]])),
        stability_case("a reference that is certain", f64([[[0.0, 0.0]]]), f64([[[800.0, 0.0]]])),
        stability_case("a word that the reference never says", f64([[[0.0, 0.0, 1.0]]]), f64([[[0.0, -1e5, 1.0]]])),
    ),
    gradient_of=("logits", "ref_logits"),
    mistakes=(
        wrong_lines("kl-reversed", {"4.2": "kl = (ref_logp.exp() * (ref_logp - logp)).sum(-1)"}),
        wrong_lines("kl-full-prob", {"4.3": "logp, ref_logp = logits.log_softmax(1), ref_logits.log_softmax(1)"}),
        wrong_lines(
            "logits-not-normalised", {"4.2": "kl = (logp.exp() * (logits - ref_logits)).sum(-1)"}, equation="4.3"
        ),
        wrong_lines("k1-as-loss", {"4.2": "kl = (logp.exp().detach() * (logp - ref_logp)).sum(-1)"}),
        wrong_lines(
            "log-of-zero",
            {"4.2": "kl = (logp.exp() * (logp.exp().log() - ref_logp.exp().log())).sum(-1)"},
            equation="4.3",
        ),
        wrong_lines("weighted-by-the-reference", {"4.2": "kl = (ref_logp.exp() * (logp - ref_logp)).sum(-1)"}),
        wrong_lines(
            "small-probabilities-dropped",
            {"4.2": "kl = torch.where(logp.exp() > 1e-4, logp.exp() * (logp - ref_logp), 0).sum(-1)"},
        ),
        wrong_lines("mean-over-words", {"4.2": "kl = (logp.exp() * (logp - ref_logp)).mean(-1)"}),
        wrong_lines("terms-made-positive", {"4.2": "kl = (logp.exp() * (logp - ref_logp).abs()).sum(-1)"}),
        wrong_lines("cross-entropy", {"4.2": "kl = -(logp.exp() * ref_logp).sum(-1)"}),
        wrong_lines("reference-not-normalised", {"4.3": "logp, ref_logp = logits.log_softmax(-1), ref_logits"}),
    ),
)


def _batch(draws: Draws, B, T):
    return draws.normal(B), *draws.updated_logps(B, T), draws.ragged(B, T)


def _with_holes(draws: Draws, B, T):
    """Return inputs with NaN and infinities where nothing counts."""
    rewards, logp, ref, _ = _batch(draws, B, T)
    mask = draws.holes(B, T)
    return rewards, padded(logp, mask), padded(ref, mask, -INF), mask


YES = torch.tensor([[True]])

KL_IN_REWARD = Exercise(
    function=kl_in_reward,
    cases=(
        handwritten_case(
            "twice as likely as under the reference", f64([1.0]), f64([[0.5]]).log(), f64([[0.25]]).log(), YES, 1.0
        ),
        handwritten_case("half as likely: a bonus", f64([1.0]), f64([[0.25]]).log(), f64([[0.5]]).log(), YES, 0.5),
        handwritten_case(
            "two tokens and padding",
            f64([0.0]),
            f64([[-1.0, -1.0, -1.0]]),
            f64([[-2.0, -3.0, -5.0]]),
            torch.tensor([[True, True, False]]),
            1.0,
        ),
        handwritten_case("no charge", f64([2.0]), f64([[-1.0]]), f64([[-3.0]]), YES, 0.0),
        drawn_case("answers of different lengths", lambda draws: (*_batch(draws, 3, 5), 0.1)),
        stability_case(
            "minus infinity in the padding",
            f64([1.0]),
            f64([[-1.0, -INF]]),
            f64([[-2.0, -INF]]),
            torch.tensor([[True, False]]),
            0.5,
        ),
        drawn_stability_case(
            "300 tokens, NaN wherever nothing counts", lambda draws: (*_with_holes(draws, 7, 300), 0.04)
        ),
    ),
    gradient_of=("logp", "ref_logp"),
    mistakes=(
        wrong_lines(
            "kl-reversed",
            {
                "4.16": "penalised = rewards + beta * torch.where(mask, kl_estimate(logp, ref_logp, 'k1'), "
                "0).sum(-1).detach()"
            },
        ),
        wrong_lines(
            "charge-not-stopped", {"4.16": "penalised = rewards - beta * torch.where(mask, logp - ref_logp, 0).sum(-1)"}
        ),
        wrong_lines(
            "charges-averaged",
            {"4.16": "penalised = rewards - beta * torch.where(mask, logp - ref_logp, 0).sum(-1).mean().detach()"},
        ),
        wrong_lines("mask-ignored", {"4.16": "penalised = rewards - beta * (logp - ref_logp).sum(-1).detach()"}),
        wrong_lines(
            "zero-times-nan", {"4.16": "penalised = rewards - beta * (mask * (logp - ref_logp)).sum(-1).detach()"}
        ),
        wrong_lines(
            "length-mean",
            {
                "4.16": "penalised = rewards - beta * torch.where(mask, kl_estimate(logp, ref_logp, 'k1'), "
                "0).sum(-1).detach() / mask.sum(-1).clamp(min=1)"
            },
        ),
        wrong_lines(
            "k3-in-reward",
            {
                "4.16": "penalised = rewards - beta * torch.where(mask, kl_estimate(logp, ref_logp, 'k3'), "
                "0).sum(-1).detach()"
            },
        ),
    ),
)
