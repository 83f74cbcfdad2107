"""The exercises of notebook 05."""

import torch

from grpo_lab.course.exercise import (
    NAN,
    Exercise,
    drawn_case,
    drawn_stability_case,
    f64,
    handwritten_case,
    logp_row,
    nan_padded,
    padded,
    stability_case,
    wrong_lines,
)
from grpo_lab.objective import aggregate, clipped_surrogate, importance_ratio, policy_loss


def ratio_under_the_mask(result, args, kwargs):
    """Observe the ratio at the positions where the mask is True: the loss ignores all others."""
    mask = args[2]
    same_shape = isinstance(result, torch.Tensor) and result.shape == mask.shape
    return {"the ratio where the mask is True": torch.where(mask, result, 1.0) if same_shape else result}


MASK_OF_ONE = torch.ones(1, 1, dtype=torch.bool)
MASK_OF_TWO = torch.ones(1, 2, dtype=torch.bool)


def _ragged_logps(d, B, T):
    return *d.updated_logps(B, T, scale=0.4), d.ragged(B, T)


def _logps_with_holes(d, B, T):
    return *d.updated_logps(B, T, scale=0.4), d.holes(B, T)


def _logps_moved_one_way(d, B, T):
    """Return a batch in which every token of the first row is 8 nats more likely than before, and all others less."""
    logp = d.logp(B, T) - 0.1
    old_logp = logp + 8
    old_logp[0] = logp[0] - 8
    return logp, old_logp, d.holes(B, T)


IMPORTANCE_RATIO = Exercise(
    function=importance_ratio,
    cases=(
        handwritten_case("one token, from probability 0.2 to 0.3", logp_row(0.3), logp_row(0.2), MASK_OF_ONE),
        handwritten_case("nothing has moved", f64([[-1.0, -2.0]]), f64([[-1.0, -2.0]]), MASK_OF_TWO),
        handwritten_case(
            "two tokens, twice and half as likely", logp_row(0.4, 0.1), logp_row(0.2, 0.2), MASK_OF_TWO, "sequence"
        ),
        handwritten_case(
            "padding after one token", logp_row(0.4, 0.9), logp_row(0.2, 0.1), torch.tensor([[True, False]]), "sequence"
        ),
        handwritten_case("no token counts", logp_row(0.4, 0.9), logp_row(0.2, 0.1), ~MASK_OF_TWO, "sequence"),
        drawn_case("tokens of rows of different lengths", lambda d: _ragged_logps(d, 3, 5)),
        drawn_case("sequences of different lengths, one empty", lambda d: _logps_with_holes(d, 3, 5), level="sequence"),
        stability_case(
            "one token 30 nats likelier, one 30 less at e^-800",
            f64([[-0.5, -830.25]]),
            f64([[-30.5, -800.25]]),
            MASK_OF_TWO,
            level="token",
        ),
        drawn_stability_case(
            "300 tokens that all moved the same way", lambda d: _logps_moved_one_way(d, 3, 300), level="sequence"
        ),
        drawn_stability_case(
            "NaN wherever nothing counts", lambda d: nan_padded(*_logps_with_holes(d, 5, 9)), level="sequence"
        ),
    ),
    gradient_of=("logp", "old_logp"),
    observations=ratio_under_the_mask,
    mistakes=(
        wrong_lines("ratio-quotient", {"5.7": "ratio = logp / old_logp.detach()"}),
        wrong_lines("old-not-detached", {"5.6": "log_ratio = torch.where(mask, logp - old_logp, 0)"}),
        wrong_lines(
            "exponential-missing",
            {
                "5.7": "ratio = log_ratio",
                "5.8": "sequence_ratio = log_ratio.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)",
            },
        ),
        wrong_lines(
            "sequence-mask-ignored",
            {
                "5.6": "log_ratio = logp - old_logp.detach()",
                "5.8": "sequence_ratio = log_ratio.mean(-1, keepdim=True).exp()",
            },
        ),
        wrong_lines("product-of-ratios", {"5.8": "sequence_ratio = log_ratio.sum(-1, keepdim=True).exp()"}),
        wrong_lines("columns-for-length", {"5.8": "sequence_ratio = log_ratio.mean(-1, keepdim=True).exp()"}),
        wrong_lines(
            "mean-of-ratios",
            {
                "5.8": "sequence_ratio = torch.where(mask, (logp - old_logp.detach()).exp(), 0).sum(-1, "
                "keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)"
            },
        ),
        wrong_lines(
            "empty-row-nan",
            {"5.8": "sequence_ratio = (log_ratio.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)).exp()"},
        ),
        wrong_lines("mask-by-multiplying", {"5.6": "log_ratio = (logp - old_logp.detach()) * mask"}),
        wrong_lines("upside-down", {"5.6": "log_ratio = torch.where(mask, old_logp.detach() - logp, 0)"}),
    ),
)


def _ratios(d, *shape):
    return d.normal(*shape, scale=0.5).exp()


def _extreme_ratios(d, *shape):
    """Return ratios between about e^-12 and e^12."""
    return d.normal(*shape, scale=4.0).exp()


CLIPPED_SURROGATE = Exercise(
    function=clipped_surrogate,
    cases=(
        handwritten_case("a good token, already 1.5 times as likely", f64([[1.5]]), f64([1.0])),
        handwritten_case("a bad token, already half as likely", f64([[0.5]]), f64([-1.0])),
        handwritten_case("a bad token that became likelier", f64([[1.5]]), f64([-1.0])),
        handwritten_case("a good token that became less likely", f64([[0.5]]), f64([1.0])),
        handwritten_case("more room above", f64([[1.25, 1.5, 0.75]]), f64([1.0]), epsilon=0.2, epsilon_high=0.28),
        handwritten_case("a bad token that became much likelier", f64([[6.0]]), f64([-1.0]), epsilon=0.2, delta=4.0),
        drawn_case("one ratio per sequence", lambda d: (_ratios(d, 4, 1), d.normal(4)), epsilon=0.1),
        drawn_case("an advantage for each token", lambda d: (_ratios(d, 3, 4), d.normal(3, 4)), epsilon_high=0.4),
        drawn_case(
            "all settings", lambda d: (2 * _ratios(d, 4, 7), d.normal(4)), epsilon=0.3, epsilon_high=0.5, delta=2.0
        ),
        stability_case("no room above", f64([[1.1, 0.9, 1.5]]), f64([2.0]), epsilon=0.3, epsilon_high=0.0),
        stability_case("a word that has become impossible", f64([[0.0, 1.0], [0.0, 1.0]]), f64([1.0, -1.0])),
        stability_case("a million times as likely, or as unlikely", f64([[1e6, 1e-6], [1e6, 1e-6]]), f64([3.0, -2.0])),
        drawn_stability_case(
            "300 tokens and delta",
            lambda d: (_extreme_ratios(d, 3, 300), d.normal(3, 300)),
            epsilon_high=0.28,
            delta=4.0,
        ),
    ),
    gradient_of=("ratio",),
    mistakes=(
        wrong_lines("clip-inverted", {"5.5": "surrogate = torch.max(bounded * advantages, clipped * advantages)"}),
        wrong_lines("clip-one-sided", {"5.5": "surrogate = torch.min(bounded, clipped) * advantages"}),
        wrong_lines("advantage-broadcast", {"per_token()": "advantages = advantages"}),
        wrong_lines("clip-only", {"5.5": "surrogate = clipped * advantages"}),
        wrong_lines("never-clipped-below", {"5.9": "clipped = ratio.clamp(max=1 + epsilon_high)"}),
        wrong_lines("epsilon-high-ignored", {"5.9": "clipped = ratio.clamp(1 - epsilon, 1 + epsilon)"}),
        wrong_lines(
            "delta-ignored", {"5.5": "surrogate = torch.min(ratio * advantages, clipped * advantages)"}, equation="5.10"
        ),
        wrong_lines("zero-taken-for-none", {"upper_clip_range()": "epsilon_high = epsilon_high or epsilon"}),
    ),
)


# One token with loss 6 and three with loss 2: the mean of the rows' means is 4, the mean over all tokens is 3.
VALUES = f64([[6.0, 0.0, 0.0], [2.0, 2.0, 2.0]])
MASK = torch.tensor([[True, False, False], [True, True, True]])
EMPTY = torch.tensor([[False, False, False], [True, True, False]])
ONE_TOKEN = torch.tensor([[False, False, False], [False, True, False]])


def _values(d, B, T):
    return d.normal(B, T), d.ragged(B, T)


def _values_with_holes(d, B, T, filling=0.0):
    mask = d.holes(B, T)
    return padded(d.normal(B, T), mask, filling), mask


AGGREGATE = Exercise(
    function=aggregate,
    cases=(
        handwritten_case("grpo: 1 token and 3 tokens", VALUES, MASK, "grpo"),
        handwritten_case("bnpo: 1 token and 3 tokens", VALUES, MASK, "bnpo"),
        handwritten_case(
            "dr_grpo: 1 token and 3 tokens, 10 allowed", VALUES, MASK, "dr_grpo", max_completion_length=10
        ),
        handwritten_case("dapo: 4 tokens of an update of 8", VALUES, MASK, "dapo", num_items=8),
        handwritten_case("dapo: the batch is the update", VALUES, MASK, "dapo"),
        handwritten_case("luspo: 1 token and 3 tokens", VALUES, MASK, "luspo"),
        handwritten_case(
            "grpo: something stands at padded positions", f64([[6.0, 9.0, 9.0], [2.0, 2.0, 2.0]]), MASK, "grpo"
        ),
        handwritten_case("sapo: one row without tokens", VALUES, EMPTY, "sapo"),
        handwritten_case("bnpo: no token at all", VALUES, torch.zeros(2, 3, dtype=torch.bool), "bnpo"),
        handwritten_case("luspo: one value per row", f64([[6.0], [2.0]]), MASK, "luspo"),
        drawn_case("grpo", lambda d: (*_values_with_holes(d, 4, 6), "grpo")),
        drawn_case("bnpo, as many rows as tokens", lambda d: (*_values(d, 5, 5), "bnpo")),
        drawn_case("dr_grpo", lambda d: (*_values(d, 3, 4), "dr_grpo"), max_completion_length=7),
        drawn_case("cispo", lambda d: (*_values(d, 3, 4), "cispo"), num_items=torch.tensor(31)),
        handwritten_case("bnpo: 4 tokens of an update of 8", VALUES, MASK, "bnpo", num_items=8),
        handwritten_case("bnpo: one token", VALUES, ONE_TOKEN, "bnpo"),
        handwritten_case("dapo: an update of one token", VALUES, ONE_TOKEN, "dapo", num_items=1),
        handwritten_case(
            "dapo: an update of 0 tokens", VALUES, torch.zeros(2, 3, dtype=torch.bool), "dapo", num_items=0
        ),
        drawn_case("vespo", lambda d: (*_values_with_holes(d, 3, 5), "vespo"), num_items=20.5),
        drawn_stability_case(
            "grpo: 300 tokens, NaN in the padding", lambda d: (*_values_with_holes(d, 3, 300, NAN), "grpo")
        ),
        drawn_stability_case(
            "dr_grpo: 300 tokens, NaN in the padding",
            lambda d: (*_values_with_holes(d, 3, 300, NAN), "dr_grpo"),
            max_completion_length=512,
            num_items=9000,
        ),
    ),
    gradient_of=("values",),
    mistakes=(
        wrong_lines("mean-over-padding", {"5.21": "return (sums / mask.shape[1]).mean()"}),
        wrong_lines("mask-forgotten", {"5.20": "lengths, sums = mask.sum(-1), values.sum(-1)"}),
        wrong_lines("mask-by-multiplying", {"5.20": "lengths, sums = mask.sum(-1), (values * mask).sum(-1)"}),
        wrong_lines("microbatch-mean", {"as_tensor()": "total = lengths.sum()"}),
        wrong_lines(
            "length-mean-mislabelled", {"5.23": "return (sums / lengths.clamp(min=1)).mean()"}, equation="5.23"
        ),
        wrong_lines("width-for-limit", {"5.23": "return sums.sum() / mask.numel()"}, equation="5.23"),
        wrong_lines(
            "empty-row-nan",
            {
                "5.21": "return (sums / lengths).mean()",
                "5.24": "return sums.sum() / lengths.sum()",
                "5.25": "return sums.sum() / total",
            },
            equation="5.21",
        ),
        wrong_lines("all-token-mean", {"5.21": "return sums.sum() / lengths.sum().clamp(1)"}),
        wrong_lines("rows-added-up", {"5.21": "return (sums / lengths.clamp(min=1)).sum()"}),
        wrong_lines("luspo-added-up", {"5.22": "return sums.sum()"}),
        wrong_lines("limit-alone", {"5.23": "return sums.sum() / max_completion_length"}),
        wrong_lines(
            "empty-rows-left-out",
            {"5.21": "return (sums / lengths.clamp(min=1)).sum() / (lengths > 0).sum().clamp(min=1)"},
        ),
        wrong_lines("empty-row-nan-where-rows-are-averaged", {"5.21": "return (sums / lengths).mean()"}),
    ),
)


def loss_without_metrics(result, args, kwargs):
    """Observe the loss alone. The metrics have to be a dictionary, whose contents are up to the student."""
    if not (isinstance(result, tuple | list) and len(result) == 2):
        return {"the result": result, "loss": None}
    loss, metrics = result
    # A batch without tokens has to have a loss that requires a gradient, so that backward() works.
    is_attached = args[2].any() or getattr(loss, "requires_grad", False)
    result = ("loss", {} if isinstance(metrics, dict) else metrics)
    return {"the result": result, "loss": loss if is_attached else "cut off from the policy"}


def _batch(d, B, T):
    """Return logp, advantages, mask, old_logp, ref_logp of a policy that differs from the old one and the reference."""
    logp, mask = d.logp(B, T) - 0.1, d.ragged(B, T)
    old_logp, ref_logp = ((logp + d.normal(B, T, scale=0.3)).clamp(max=-0.01) for _ in range(2))
    return logp, d.normal(B), mask, old_logp, ref_logp


def _first_update_batch(d, B, T):
    """Return a batch of the first update, without old log-probabilities; the mask of its last row is empty."""
    logp, advantages, _, _, ref_logp = _batch(d, B, T)
    return logp, advantages, d.holes(B, T), None, ref_logp


def _batch_with_token_advantages(d, B, T):
    logp, _, *logps = _batch(d, B, T)
    return logp, d.normal(B, T), *logps


def _batch_with_holes(d, B, T):
    """Return a batch whose log-probabilities outside the mask are finite and far from the policy's."""
    logp, advantages, _, old_logp, ref_logp = _batch(d, B, T)
    mask = d.holes(B, T)
    return padded(logp, mask, -9.0), advantages, mask, padded(old_logp, mask, -3.0), padded(ref_logp, mask, -5.0)


def _float32_batch(d, B, T):
    return tuple(x.float() if x.is_floating_point() else x for x in _batch_with_holes(d, B, T))


LOGP, OLD = f64([[0.3]]).log(), f64([[0.2]]).log()
# Two tokens: the reference gives the first half the policy's probability, and the second the same.
PAIR, REF = f64([[0.4, 0.5]]).log(), f64([[0.2, 0.5]]).log()
FIRST_OF_TWO = torch.tensor([[True, False]])
SEQUENCE = {"importance_sampling_level": "sequence"}

POLICY_LOSS = Exercise(
    function=policy_loss,
    cases=(
        handwritten_case("one good token, already 1.5 times as likely", LOGP, f64([1.0]), MASK_OF_ONE, OLD),
        handwritten_case("one good token, nothing has moved", LOGP, f64([2.0]), MASK_OF_ONE),
        handwritten_case("a KL term alone, second token padded", PAIR, f64([0.0]), FIRST_OF_TWO, None, REF, beta=0.5),
        handwritten_case(
            "a good token and a KL term", LOGP, f64([1.0]), MASK_OF_ONE, None, f64([[0.1]]).log(), beta=0.1
        ),
        drawn_case("many completions", lambda d: _batch(d, 4, 6), beta=0.1),
        drawn_case(
            "an advantage for each token",
            lambda d: _batch_with_token_advantages(d, 3, 4),
            epsilon=0.1,
            epsilon_high=0.28,
        ),
        drawn_case("one ratio per sequence", lambda d: _batch(d, 4, 6), epsilon=0.05, **SEQUENCE),
        handwritten_case(
            "a bad token, now three times as likely", LOGP, f64([-1.0]), MASK_OF_ONE, f64([[0.1]]).log(), delta=2.0
        ),
        drawn_case("another KL estimator", lambda d: _batch(d, 3, 4), beta=0.3, kl_estimator="k2"),
        drawn_case("a KL term corrected by the ratio", lambda d: _batch(d, 3, 5), beta=0.3, kl_bias_correction=True),
        drawn_case(
            "the first update, one ratio per sequence, a corrected KL term",
            lambda d: _first_update_batch(d, 3, 4),
            beta=0.3,
            kl_bias_correction=True,
            **SEQUENCE,
        ),
        drawn_case(
            "bnpo, the first update, one row empty", lambda d: _first_update_batch(d, 3, 4), beta=0.04, loss_type="bnpo"
        ),
        drawn_case("dapo, part of an update", lambda d: _batch(d, 3, 5), loss_type="dapo", beta=0.1, num_items=40),
        drawn_case(
            "dr_grpo", lambda d: _batch_with_token_advantages(d, 3, 5), loss_type="dr_grpo", max_completion_length=9
        ),
        drawn_case(
            "luspo, one ratio per sequence",
            lambda d: _batch_with_token_advantages(d, 3, 4),
            loss_type="luspo",
            epsilon=0.1,
            **SEQUENCE,
        ),
        drawn_stability_case(
            "300 tokens, a mask with holes",
            lambda d: _batch_with_holes(d, 3, 300),
            epsilon=0.1,
            epsilon_high=0.0,
        ),
        drawn_stability_case("float32", lambda d: _float32_batch(d, 4, 30), loss_type="dapo", beta=0.1),
    ),
    gradient_of=("logp", "old_logp", "ref_logp"),
    observations=loss_without_metrics,
    mistakes=(
        wrong_lines(
            "no-ratio",
            {"5.12": "values = -logp * (advantages if advantages.ndim == 2 else advantages[:, None])"},
            equation="5.12",
        ),
        wrong_lines("ascends", {"5.12": "values = surrogate"}),
        wrong_lines("kl-rewarded", {"5.13": "values = values - beta * kl"}),
        wrong_lines(
            "k1-as-loss",
            {"kl_estimate()": "kl = kl_estimate(logp, torch.where(mask, ref_logp, 0), 'k1')"},
            equation="5.13",
        ),
        wrong_lines(
            "kl-reversed",
            {"kl_estimate()": "kl = kl_estimate(-logp, -torch.where(mask, ref_logp, 0), kl_estimator)"},
            equation="5.13",
        ),
        wrong_lines(
            "kl-over-padding",
            {
                "[padding]": "logp, old_logp = logp, old_logp",
                "kl_estimate()": "kl = kl_estimate(logp, ref_logp, kl_estimator)",
                "5.13": "values = values",
                "5.14": "loss = aggregate(values, mask, loss_type, max_completion_length, num_items)"
                " + (beta * kl.mean() if beta > 0 else 0)",
            },
        ),
        wrong_lines("microbatch-mean", {"5.14": "loss = aggregate(values, mask, loss_type, max_completion_length)"}),
    ),
)
