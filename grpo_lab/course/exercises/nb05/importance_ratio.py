"""The exercise importance_ratio: wrong answers, as people write them, then what is said about each."""

import torch

from grpo_lab.course.exercise import Exercise, Misconception
from grpo_lab.course.exercises._inputs import drawn, f64, given
from grpo_lab.objective import importance_ratio


def under_the_mask(result, args, kwargs):
    """What stands at masked positions is nobody's business: the loss leaves it out."""
    mask = args[2]
    same_shape = isinstance(result, torch.Tensor) and result.shape == mask.shape
    return {"ratio": torch.where(mask, result, 1.0) if same_shape else result}


def _ratios(log_ratio, mask, level):
    if level == "token":
        return log_ratio.exp()
    return ((log_ratio * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)).exp()


def quotient(logp, old_logp, mask, level="token"):
    if level == "token":
        return logp / old_logp.detach()
    return _ratios(logp - old_logp.detach(), mask, level)


def difference(logp, old_logp, mask, level="token"):
    log_ratio = logp - old_logp.detach()
    return log_ratio if level == "token" else _ratios(log_ratio, mask, level).log()


def old_live(logp, old_logp, mask, level="token"):
    return _ratios(logp - old_logp, mask, level)


def all_stopped(logp, old_logp, mask, level="token"):
    return _ratios((logp - old_logp).detach(), mask, level)


def upside_down(logp, old_logp, mask, level="token"):
    return _ratios(old_logp.detach() - logp, mask, level)


def product(logp, old_logp, mask, level="token"):
    log_ratio = logp - old_logp.detach()
    return log_ratio.exp() if level == "token" else (log_ratio * mask).sum(-1, keepdim=True).exp()


def mean_of_ratios(logp, old_logp, mask, level="token"):
    ratio = (logp - old_logp.detach()).exp()
    return ratio if level == "token" else (ratio * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)


def over_padding(logp, old_logp, mask, level="token"):
    log_ratio = logp - old_logp.detach()
    return log_ratio.exp() if level == "token" else (log_ratio * mask).mean(-1, keepdim=True).exp()


def unmasked(logp, old_logp, mask, level="token"):
    log_ratio = logp - old_logp.detach()
    return log_ratio.exp() if level == "token" else log_ratio.mean(-1, keepdim=True).exp()


def unkept(logp, old_logp, mask, level="token"):
    ratio = _ratios(logp - old_logp.detach(), mask, level)
    return ratio if level == "token" else ratio[:, 0]


def empty_over_zero(logp, old_logp, mask, level="token"):
    log_ratio = logp - old_logp.detach()
    return log_ratio.exp() if level == "token" else ((log_ratio * mask).sum(-1, True) / mask.sum(-1, True)).exp()


ONE = torch.ones(1, 1, dtype=torch.bool)
TWO = torch.ones(1, 2, dtype=torch.bool)


def _moved(d, B, T):
    old = d.logp(B, T) - 0.1
    return (old + d.normal(B, T, scale=0.4)).clamp(max=-0.01), old


def _ragged(d, B, T):
    return *_moved(d, B, T), d.ragged(B, T)


def _with_empty_row(d, B, T):
    mask = d.ragged(B, T)
    mask[-1] = False
    return *_moved(d, B, T), mask


EXERCISE = Exercise(
    function=importance_ratio,
    notebook="05",
    points=4,
    minutes=15,
    difficulty=1,
    task="How much likelier has each sampled token become since it was sampled? This ratio is what lets you take "
    "several updates from one batch. At the sequence level, one ratio stands for the whole completion.",
    hints=(
        "You hold logarithms. What is the logarithm of a quotient?",
        "The policy that sampled is the past: no update can change it. Which call says so to autograd?",
        "A sequence's ratio is a geometric mean. In logarithms that is a plain mean, over the tokens that count.",
        "A completion may have no token under the mask. Its mean then has 0 in the denominator: what do you want "
        "there? And `keepdim=True` keeps the shape (B, 1).",
    ),
    cases=(
        given("one token, from probability 0.2 to 0.3", f64([[0.3]]).log(), f64([[0.2]]).log(), ONE),
        given("nothing has moved", f64([[-1.0, -2.0]]), f64([[-1.0, -2.0]]), TWO),
        given("two tokens, each twice as likely", f64([[0.4, 0.2]]).log(), f64([[0.2, 0.1]]).log(), TWO, "sequence"),
        given(
            "two tokens, twice and half as likely", f64([[0.4, 0.1]]).log(), f64([[0.2, 0.2]]).log(), TWO, "sequence"
        ),
        given(
            "padding after one token",
            f64([[0.4, 0.9]]).log(),
            f64([[0.2, 0.1]]).log(),
            torch.tensor([[True, False]]),
            "sequence",
        ),
        given("no token counts", f64([[0.4, 0.9]]).log(), f64([[0.2, 0.1]]).log(), ~TWO, "sequence"),
        drawn("tokens of rows of different lengths", lambda d: _ragged(d, 3, 5)),
        drawn("as many rows as tokens", lambda d: _ragged(d, 4, 4), level="sequence"),
        drawn("sequences of different lengths, one empty", lambda d: _with_empty_row(d, 3, 5), level="sequence"),
    ),
    gradient_of=("logp", "old_logp"),
    observe=under_the_mask,
    misconceptions=(
        Misconception(
            "ratio-quotient",
            quotient,
            "You divide one log-probability by the other. Both are negative, so as a token becomes *likelier* your "
            "quotient falls, and every update goes the wrong way. Which quotient is meant, and what does it become in "
            "logarithms?",
            "5.2",
        ),
        Misconception(
            "log-ratio",
            difference,
            "This is the logarithm of the ratio. For a policy that has not moved you get 0; what should the ratio be "
            "there? With 0, the clip at 0.8 would bind from the first step.",
            "5.2",
        ),
        Misconception(
            "old-not-detached",
            old_live,
            "The values are right, but a gradient flows into the old log-probabilities as well. In the first update "
            "both sides come from the same model: the two gradients cancel, and the policy learns nothing at all. "
            "Which of the two is a record of the past?",
            "5.1",
        ),
        Misconception(
            "all-detached",
            all_stopped,
            "The values are right, but no gradient is left: both log-probabilities are stopped. Which of the two "
            "policies are you training?",
            "5.1",
        ),
        Misconception(
            "upside-down",
            upside_down,
            "Your ratio is the other way up: a token that has become likelier gets less than 1. Say it in words: "
            "likelier under which policy, compared with which?",
            "5.1",
        ),
        Misconception(
            "product-of-ratios",
            product,
            "At the sequence level you multiply the ratios of all tokens. A thousand tokens that each moved by 1% give "
            "a ratio of 20 000, and everything is clipped. How does GSPO make long and short completions comparable?",
            "5.3",
        ),
        Misconception(
            "mean-of-ratios",
            mean_of_ratios,
            "At the sequence level you average the ratios. Take two tokens, one twice and one half as likely: together "
            "the completion is exactly as likely as before. Is your mean 1? Where does the mean belong, before the "
            "exponential or after it?",
            "5.3",
        ),
        Misconception(
            "mean-over-padding",
            over_padding,
            "At the sequence level your sum is right but you divide by T, padding included. A short completion in a "
            "long batch then seems hardly to have moved. How many tokens has each row really?",
            "5.3",
        ),
        Misconception(
            "mask-forgotten",
            unmasked,
            "At the sequence level padding takes part. Whatever stands behind the end of a completion changes its "
            "ratio. What is `mask` for?",
            "5.3",
        ),
        Misconception(
            "axis-lost",
            unkept,
            "The numbers are right, but the sequence ratio has shape (B,). Multiplied by something of shape (B, T), it "
            "will be laid along the tokens. What shape does the signature promise?",
            "5.3",
        ),
        Misconception(
            "empty-row-nan",
            empty_over_zero,
            "A row in which no token counts gives 0 / 0. That happens: truncated completions may be masked whole. One "
            "NaN makes the loss NaN. What is the smallest count that keeps the quotient finite?",
            "5.3",
        ),
    ),
)
