import torch

from grpo_lab.course.exercise import Exercise, Misconception, at_scale, drawn, f64, given, padded
from grpo_lab.course.exercises.nb05.importance_ratio import ONE
from grpo_lab.objective import policy_loss


def the_loss(result, args, kwargs):
    """The metrics are left to the student, but there is a dictionary for them."""
    if not (isinstance(result, tuple | list) and len(result) == 2):
        return {"the result": result, "loss": None}
    loss, metrics = result
    return {"the result": ("loss", {} if isinstance(metrics, dict) else metrics), "loss": loss}


def _batch(d, B, T):
    """logp, advantages, mask, old_logp, ref_logp: the policy has moved since it sampled, and from the reference."""
    logp, mask = d.logp(B, T) - 0.1, d.ragged(B, T)
    old_logp, ref_logp = ((logp + d.normal(B, T, scale=0.3)).clamp(max=-0.01) for _ in range(2))
    return logp, d.normal(B), mask, old_logp, ref_logp


def _first_update(d, B, T):
    """Nothing was recorded while sampling; one row has no token that counts."""
    logp, advantages, _, _, ref_logp = _batch(d, B, T)
    return logp, advantages, d.holes(B, T), None, ref_logp


def _per_token(d, B, T):
    logp, _, *rest = _batch(d, B, T)
    return logp, d.normal(B, T), *rest


def _with_holes(d, B, T):
    """What stands outside of the mask is finite, and far from anything that the policy said."""
    logp, advantages, _, old_logp, ref_logp = _batch(d, B, T)
    mask = d.holes(B, T)
    return padded(logp, mask, -9.0), advantages, mask, padded(old_logp, mask, -3.0), padded(ref_logp, mask, -5.0)


def _in_float32(d, B, T):
    return tuple(x.float() if x.is_floating_point() else x for x in _with_holes(d, B, T))


LOGP, OLD = f64([[0.3]]).log(), f64([[0.2]]).log()
# Both tokens in place, the first half as likely under the reference.
PAIR, REF = f64([[0.4, 0.5]]).log(), f64([[0.2, 0.5]]).log()
FIRST_OF_TWO = torch.tensor([[True, False]])
SEQUENCE = {"importance_sampling_level": "sequence"}

EXERCISE = Exercise(
    function=policy_loss,
    points=8,
    minutes=35,
    difficulty=3,
    task="Put the objective together: ratio, surrogate, KL term, aggregation, minus sign. You have every part already: "
    "`importance_ratio`, `clipped_surrogate`, `kl_estimate`, `aggregate`. The loss types that share the clipped "
    "surrogate are checked: 'grpo', 'bnpo', 'dr_grpo', 'dapo' and 'luspo'. So is the loss alone: the dictionary of "
    "metrics may be empty.",
    hints=(
        "Four calls and a sign. Write the plain case first, with beta = 0 and without an old policy.",
        "If there is no old policy, the current one sampled. Its log-probabilities are then a record, and carry no "
        "gradient.",
        "Signs: you maximise the surrogate and want the distance from the reference small. The optimiser minimises "
        "their combination. Add the KL term per token, before aggregating.",
        "Hand every setting on to the function that has an argument of that name.",
    ),
    cases=(
        given("one good token, already 1.5 times as likely", LOGP, f64([1.0]), ONE, OLD),
        given("one good token, nothing has moved", LOGP, f64([2.0]), ONE),
        given("a KL term alone, second token padded", PAIR, f64([0.0]), FIRST_OF_TWO, None, REF, beta=0.5),
        given("a good token and a KL term", LOGP, f64([1.0]), ONE, None, f64([[0.1]]).log(), beta=0.1),
        drawn("many completions", lambda d: _batch(d, 4, 6), beta=0.1),
        drawn("an advantage for each token", lambda d: _per_token(d, 3, 4), epsilon=0.1, epsilon_high=0.28),
        drawn("one ratio a sequence", lambda d: _batch(d, 4, 6), epsilon=0.05, **SEQUENCE),
        given("a bad token, now three times as likely", LOGP, f64([-1.0]), ONE, f64([[0.1]]).log(), delta=2.0),
        drawn("another KL estimator", lambda d: _batch(d, 3, 4), beta=0.3, kl_estimator="k2"),
        drawn("a KL term corrected by the ratio", lambda d: _batch(d, 3, 5), beta=0.3, kl_bias_correction=True),
        drawn(
            "the first update, one ratio a sequence, a corrected KL term",
            lambda d: _first_update(d, 3, 4),
            beta=0.3,
            kl_bias_correction=True,
            **SEQUENCE,
        ),
        drawn("bnpo, the first update, one row empty", lambda d: _first_update(d, 3, 4), beta=0.04, loss_type="bnpo"),
        drawn("dapo, part of an update", lambda d: _batch(d, 3, 5), loss_type="dapo", beta=0.1, num_items=40),
        drawn("dr_grpo", lambda d: _per_token(d, 3, 5), loss_type="dr_grpo", max_completion_length=9),
        drawn("luspo, one ratio a sequence", lambda d: _per_token(d, 3, 4), loss_type="luspo", epsilon=0.1, **SEQUENCE),
        at_scale("300 tokens, a mask with holes", lambda d: _with_holes(d, 3, 300), epsilon=0.1, epsilon_high=0.0),
        at_scale("float32", lambda d: _in_float32(d, 4, 30), loss_type="dapo", beta=0.1),
    ),
    gradient_of=("logp", "old_logp", "ref_logp"),
    observe=the_loss,
    misconceptions={
        "ascends": Misconception(
            "The sign of the surrogate is missing. An optimiser makes the loss smaller, and the surrogate is to become "
            "*larger*: as you wrote it, good answers are unlearned.",
            {"5.21": "values = surrogate"},
        ),
        "kl-rewarded": Misconception(
            "Your KL term has the wrong sign: the further the policy runs from the reference, the smaller the loss. "
            "Did the minus sign of the surrogate catch the KL term as well?",
            {"5.22": "values = values - beta * kl"},
        ),
        "k1-as-loss": Misconception(
            "You use k1 as the KL term. As a value it is unbiased, but the gradient of log pi is zero on average: it "
            "penalises nothing. Which estimator was asked for, and where does it have to go?",
            {"kl_estimate()": "kl = kl_estimate(logp, torch.where(mask, ref_logp, 0), 'k1')"},
            equation="5.22",
        ),
        "kl-reversed": Misconception(
            "The two policies have changed places in your KL term: it grows with exp(log pi - log ref). Samples come "
            "from the policy, so that is no estimate of the KL at all, and one token that the reference thinks "
            "impossible makes it explode. Which of them is the one that is *estimated from*?",
            {"kl_estimate()": "kl = kl_estimate(-logp, -torch.where(mask, ref_logp, 0), kl_estimator)"},
            equation="5.22",
        ),
        "kl-over-padding": Misconception(
            "The KL term is averaged by itself, over all positions, padding included. It should be a number per token, "
            "and meet the same mask and the same denominator as the surrogate. At which line does it join?",
            {
                "[padding]": "logp, old_logp = logp, old_logp",
                "kl_estimate()": "kl = kl_estimate(logp, ref_logp, kl_estimator)",
                "5.22": "values = values",
                "_mean()": "return loss + beta * kl.mean() if beta > 0 else loss, {name: _mean(x, mask) for "
                "name, x in metrics.items()}",
            },
        ),
        "microbatch-mean": Misconception(
            "`num_items` does not arrive at the aggregation. Then every micro-batch is a mean of its own, and the "
            "gradient depends on how the update is cut.",
            {"5.23": "loss = aggregate(values, mask, loss_type, max_completion_length)"},
        ),
    },
)
