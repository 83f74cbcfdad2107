import torch

from grpo_lab.course.exercise import Exercise, Misconception, at_scale, drawn, extreme, f64, given, log, nan_padded
from grpo_lab.objective import importance_ratio


def under_the_mask(result, args, kwargs):
    """What stands at masked positions is not compared: the loss leaves it out."""
    mask = args[2]
    same_shape = isinstance(result, torch.Tensor) and result.shape == mask.shape
    return {"ratio (1 where the mask is False)": torch.where(mask, result, 1.0) if same_shape else result}


ONE = torch.ones(1, 1, dtype=torch.bool)
TWO = torch.ones(1, 2, dtype=torch.bool)


def _ragged(d, B, T):
    return *d.moved(B, T, scale=0.4), d.ragged(B, T)


def _with_holes(d, B, T):
    return *d.moved(B, T, scale=0.4), d.holes(B, T)


def _all_one_way(d, B, T):
    """The first row has become likelier by 8 nats a token, the others less likely."""
    logp = d.logp(B, T) - 0.1
    old_logp = logp + 8
    old_logp[0] = logp[0] - 8
    return logp, old_logp, d.holes(B, T)


EXERCISE = Exercise(
    function=importance_ratio,
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
        given("one token, from probability 0.2 to 0.3", log(0.3), log(0.2), ONE),
        given("nothing has moved", f64([[-1.0, -2.0]]), f64([[-1.0, -2.0]]), TWO),
        given("two tokens, twice and half as likely", log(0.4, 0.1), log(0.2, 0.2), TWO, "sequence"),
        given("padding after one token", log(0.4, 0.9), log(0.2, 0.1), torch.tensor([[True, False]]), "sequence"),
        given("no token counts", log(0.4, 0.9), log(0.2, 0.1), ~TWO, "sequence"),
        drawn("tokens of rows of different lengths", lambda d: _ragged(d, 3, 5)),
        drawn("sequences of different lengths, one empty", lambda d: _with_holes(d, 3, 5), level="sequence"),
        extreme(
            "one token 30 nats likelier, one 30 less at e^-800",
            f64([[-0.5, -830.25]]),
            f64([[-30.5, -800.25]]),
            TWO,
            level="token",
        ),
        at_scale("300 tokens that all moved the same way", lambda d: _all_one_way(d, 3, 300), level="sequence"),
        at_scale("NaN wherever nothing counts", lambda d: nan_padded(*_with_holes(d, 5, 9)), level="sequence"),
    ),
    gradient_of=("logp", "old_logp"),
    observe=under_the_mask,
    misconceptions={
        "ratio-quotient": Misconception(
            "You divide one log-probability by the other. Both are negative, so as a token becomes *likelier* your "
            "quotient falls, and every update goes the wrong way. Which quotient is meant, and what does it become in "
            "logarithms?",
            {"5.2": "ratio = logp / old_logp.detach()"},
        ),
        "old-not-detached": Misconception(
            "The values are right, but a gradient flows into the old log-probabilities as well. In the first update "
            "both sides come from the same model: the two gradients cancel, and the policy learns nothing at all. "
            "Which of the two is a record of the past?",
            {"5.1": "log_ratio = torch.where(mask, logp - old_logp, 0)"},
        ),
        "product-of-ratios": Misconception(
            "At the sequence level you multiply the ratios of all tokens. A thousand tokens that each moved by 1% give "
            "a ratio of 20 000, and everything is clipped. How does GSPO make long and short completions comparable?",
            {"5.3": "sequence_ratio = log_ratio.sum(-1, keepdim=True).exp()"},
        ),
        "mean-of-ratios": Misconception(
            "At the sequence level you average the ratios. Take two tokens, one twice and one half as likely: together "
            "the completion is exactly as likely as before, and your mean is not 1. Where does the mean belong, before "
            "the exponential or after it?",
            {
                "5.3": "sequence_ratio = torch.where(mask, (logp - old_logp.detach()).exp(), 0).sum(-1, "
                "keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)"
            },
        ),
        "empty-row-nan": Misconception(
            "A row in which no token counts gives 0 / 0, and one NaN makes the loss NaN. Such rows exist: truncated "
            "completions may be masked whole. What is the smallest count that keeps the quotient finite?",
            {"5.3": "sequence_ratio = (log_ratio.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)).exp()"},
        ),
        "mask-by-multiplying": Misconception(
            "You multiply by the mask, so NaN at a padded position gives 0 * NaN, which is NaN, and the ratio of the "
            "whole sequence is lost. How can a position be left out without computing with it?",
            {"5.1": "log_ratio = (logp - old_logp.detach()) * mask"},
        ),
    },
)
