"""The exercises of notebook 05."""

import torch

from grpo_lab.course.exercise import (
    NAN,
    Exercise,
    Misconception,
    at_scale,
    drawn,
    extreme,
    f64,
    given,
    log,
    nan_padded,
    padded,
)
from grpo_lab.objective import aggregate, clipped_surrogate, importance_ratio, policy_loss


def under_the_mask(result, args, kwargs):
    """What stands at masked positions is not compared: the loss leaves it out."""
    mask = args[2]
    same_shape = isinstance(result, torch.Tensor) and result.shape == mask.shape
    return {"the ratio where the mask is True": torch.where(mask, result, 1.0) if same_shape else result}


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


IMPORTANCE_RATIO = Exercise(
    function=importance_ratio,
    points=4,
    minutes=4,
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
        "wrong-one-detached": Misconception(
            "You stopped the gradient of the policy's own log-probabilities, and left that of the old ones. Nothing is "
            "learned, and the past is pushed. Which of the two can an update still change?",
            {"5.1": "log_ratio = torch.where(mask, logp.detach() - old_logp, 0)"},
        ),
        "exponential-missing": Misconception(
            "This is the logarithm of the ratio. Where nothing has moved it is 0, and a ratio is 1 there.",
            {
                "5.2": "ratio = log_ratio",
                "5.3": "sequence_ratio = log_ratio.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)",
            },
        ),
        "sequence-mask-ignored": Misconception(
            "At the sequence level your mean runs over all T positions, padding included. How far a completion has "
            "moved then depends on its longest neighbour. Which positions count?",
            {
                "5.1": "log_ratio = logp - old_logp.detach()",
                "5.3": "sequence_ratio = log_ratio.mean(-1, keepdim=True).exp()",
            },
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


def _ratio(d, *shape):
    return d.normal(*shape, scale=0.5).exp()


def _far(d, *shape):
    """Ratios between about e^-12 and e^12."""
    return d.normal(*shape, scale=4.0).exp()


def advantage_broadcast(address: str = "per_token()", line: str = "advantages = advantages") -> Misconception:
    return Misconception(
        "The advantages have shape (B,), and you use them as they are. Broadcasting lays them along the tokens: where "
        "B = T nothing fails, and token t of *every* completion gets the advantage of completion t. Along which axis "
        "should they lie?",
        {address: line},
    )


CLIPPED_SURROGATE = Exercise(
    function=clipped_surrogate,
    points=5,
    minutes=6,
    difficulty=2,
    task="Write what one token contributes, once the policy has moved: PPO's clipped objective, to be maximised. It "
    "decides when a token stops being pushed.",
    hints=(
        "Draw ratio against contribution, once for A = 1 and once for A = -1. Where should each curve go flat?",
        "There are two offers: the ratio times the advantage, and the clipped ratio times the advantage. The "
        "objective is a pessimist.",
        "Multiply first, choose afterwards. With a negative advantage the smaller ratio makes the larger product.",
        "One advantage per completion has shape (B,), the ratio (B, T). Try B = T = 2 on paper before you multiply.",
    ),
    cases=(
        given("a good token, already 1.5 times as likely", f64([[1.5]]), f64([1.0])),
        given("a bad token, already half as likely", f64([[0.5]]), f64([-1.0])),
        given("a bad token that became likelier", f64([[1.5]]), f64([-1.0])),
        given("a good token that became less likely", f64([[0.5]]), f64([1.0])),
        given("more room above", f64([[1.25, 1.5, 0.75]]), f64([1.0]), epsilon=0.2, epsilon_high=0.28),
        given("a bad token that became much likelier", f64([[6.0]]), f64([-1.0]), epsilon=0.2, delta=4.0),
        drawn("one ratio a sequence", lambda d: (_ratio(d, 4, 1), d.normal(4)), epsilon=0.1),
        drawn("an advantage for each token", lambda d: (_ratio(d, 3, 4), d.normal(3, 4)), epsilon_high=0.4),
        drawn("all settings", lambda d: (2 * _ratio(d, 4, 7), d.normal(4)), epsilon=0.3, epsilon_high=0.5, delta=2.0),
        extreme("no room above", f64([[1.1, 0.9, 1.5]]), f64([2.0]), epsilon=0.3, epsilon_high=0.0),
        extreme("a word that has become impossible", f64([[0.0, 1.0], [0.0, 1.0]]), f64([1.0, -1.0])),
        extreme("a million times as likely, or as unlikely", f64([[1e6, 1e-6], [1e6, 1e-6]]), f64([3.0, -2.0])),
        at_scale("300 tokens and delta", lambda d: (_far(d, 3, 300), d.normal(3, 300)), epsilon_high=0.28, delta=4.0),
    ),
    gradient_of=("ratio",),
    misconceptions={
        "clip-inverted": Misconception(
            "You take the better of the two offers. Where a token has been pushed far enough, yours goes on pushing; "
            "where it has moved the wrong way, yours lets go. Should the objective be an optimist?",
            {"5.7": "surrogate = torch.max(bounded * advantages, clipped * advantages)"},
        ),
        "clip-one-sided": Misconception(
            "You take the smaller *ratio* first, and multiply by the advantage afterwards. For A > 0 that is the same. "
            "Now take A = -1 and ratios 0.5 and 0.8: which product is smaller, and which ratio did you keep?",
            {"5.7": "surrogate = torch.min(bounded, clipped) * advantages"},
        ),
        "advantage-broadcast": advantage_broadcast(),
        "clip-only": Misconception(
            "You always take the clipped ratio. A bad token that has become much likelier then lies on the flat part, "
            "with no gradient that would bring it back. There should be a second offer to compare with.",
            {"5.7": "surrogate = clipped * advantages"},
        ),
        "epsilon-high-ignored": Misconception(
            "`epsilon_high` has no effect in your version. It is the room *above* 1; only if it is None is that the "
            "same as below.",
            {"5.5": "clipped = ratio.clamp(1 - epsilon, 1 + epsilon)"},
        ),
        "delta-ignored": Misconception(
            "`delta` has no effect in your version. A bad token whose ratio is 1000 contributes -1000, and rules the "
            "batch. Which of the two offers has no bound from above yet?",
            {"5.7": "surrogate = torch.min(ratio * advantages, clipped * advantages)"},
            equation="5.6",
        ),
    },
)


# One token with loss 6, three with loss 2: the mean of means is 4, the mean over tokens 3.
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
    points=6,
    minutes=8,
    difficulty=2,
    task="Turn one number per token into a single number. Five denominators for the eight loss types: each decides how "
    "much a token of a long completion counts.",
    hints=(
        "Two rows, one with 1 token and one with 3. Work out on paper what each loss type divides by.",
        "All of them start from the same two things: the sum of each row under the mask, and its number of tokens.",
        "0 times NaN is NaN. `torch.where` looks away, multiplication does not.",
        "T_max is a setting of the run, N a count over the whole update: neither can be read off this batch. Only if "
        "N is not given is this batch the whole update.",
    ),
    cases=(
        given("grpo: 1 token and 3 tokens", VALUES, MASK, "grpo"),
        given("bnpo: 1 token and 3 tokens", VALUES, MASK, "bnpo"),
        given("dr_grpo: 1 token and 3 tokens, 10 allowed", VALUES, MASK, "dr_grpo", max_completion_length=10),
        given("dapo: 4 tokens of an update of 8", VALUES, MASK, "dapo", num_items=8),
        given("dapo: the batch is the update", VALUES, MASK, "dapo"),
        given("luspo: 1 token and 3 tokens", VALUES, MASK, "luspo"),
        given("grpo: something stands at padded positions", f64([[6.0, 9.0, 9.0], [2.0, 2.0, 2.0]]), MASK, "grpo"),
        given("sapo: one row without tokens", VALUES, EMPTY, "sapo"),
        given("bnpo: no token at all", VALUES, torch.zeros(2, 3, dtype=torch.bool), "bnpo"),
        given("luspo: one value a row", f64([[6.0], [2.0]]), MASK, "luspo"),
        drawn("grpo", lambda d: (*_values_with_holes(d, 4, 6), "grpo")),
        drawn("bnpo, as many rows as tokens", lambda d: (*_values(d, 5, 5), "bnpo")),
        drawn("dr_grpo", lambda d: (*_values(d, 3, 4), "dr_grpo"), max_completion_length=7),
        drawn("cispo", lambda d: (*_values(d, 3, 4), "cispo"), num_items=torch.tensor(31)),
        given("bnpo: 4 tokens of an update of 8", VALUES, MASK, "bnpo", num_items=8),
        given("bnpo: one token", VALUES, ONE_TOKEN, "bnpo"),
        given("dapo: an update of one token", VALUES, ONE_TOKEN, "dapo", num_items=1),
        given("dapo: an update of 0 tokens", VALUES, torch.zeros(2, 3, dtype=torch.bool), "dapo", num_items=0),
        drawn("vespo", lambda d: (*_values_with_holes(d, 3, 5), "vespo"), num_items=20.5),
        at_scale("grpo: 300 tokens, NaN in the padding", lambda d: (*_values_with_holes(d, 3, 300, NAN), "grpo")),
        at_scale(
            "dr_grpo: 300 tokens, NaN in the padding",
            lambda d: (*_values_with_holes(d, 3, 300, NAN), "dr_grpo"),
            max_completion_length=512,
            num_items=9000,
        ),
    ),
    gradient_of=("values",),
    misconceptions={
        "mean-over-padding": Misconception(
            "For 'grpo' you divide each row by T, padding included. A short completion in a long batch then counts for "
            "little, and how much depends on who else is in the batch. How many tokens has the row itself?",
            {"5.16": "return (sums / mask.shape[1]).mean()"},
        ),
        "mask-forgotten": Misconception(
            "What stands at padded positions reaches your loss. Those tokens were never chosen by the policy.",
            {"5.15": "lengths, sums = mask.sum(-1), values.sum(-1)"},
        ),
        "mask-by-multiplying": Misconception(
            "You multiply by the mask, so NaN at a padded position gives 0 * NaN, which is NaN, and the loss is lost. "
            "How can a position be left out without computing with it?",
            {"5.15": "lengths, sums = mask.sum(-1), (values * mask).sum(-1)"},
        ),
        "microbatch-mean": Misconception(
            "For 'dapo', 'cispo' and 'vespo' you divide by the tokens of *this* batch and ignore `num_items`. Cut an "
            "update into micro-batches and each becomes a mean of its own: the result depends on how you cut. Whose "
            "tokens should be counted?",
            {"as_tensor()": "total = lengths.sum()"},
        ),
        "length-mean-mislabelled": Misconception(
            "What you call 'dr_grpo' still divides each row by its own length. That is 'grpo', with the length bias "
            "that Dr. GRPO removes: tokens of a long wrong answer are punished less than those of a short one.",
            {"5.18": "return (sums / lengths.clamp(min=1)).mean()"},
            equation="5.18",
        ),
        "width-for-limit": Misconception(
            "For 'dr_grpo' you divide by T, the width of this batch. That is the length of its longest completion, so "
            "the same token counts less beside a long neighbour. What is T_max?",
            {"5.18": "return sums.sum() / mask.numel()"},
            equation="5.18",
        ),
        "empty-row-nan": Misconception(
            "A row without a token gives 0 / 0, and one NaN makes the loss NaN. It happens: truncated completions may "
            "be masked whole. What keeps each denominator at least 1?",
            {
                "5.16": "return (sums / lengths).mean()",
                "5.19": "return sums.sum() / lengths.sum()",
                "5.20": "return sums.sum() / total",
            },
            equation="5.16",
        ),
        "all-token-mean": Misconception(
            "For 'grpo' you average over all tokens of the batch. A completion of 1000 tokens then counts a hundred "
            "times as much as one of 10. In GRPO each *completion* has one vote: what is averaged first?",
            {"5.16": "return sums.sum() / lengths.sum().clamp(1)"},
        ),
    },
)


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


def _batch_with_holes(d, B, T):
    """What stands outside of the mask is finite, and far from anything that the policy said."""
    logp, advantages, _, old_logp, ref_logp = _batch(d, B, T)
    mask = d.holes(B, T)
    return padded(logp, mask, -9.0), advantages, mask, padded(old_logp, mask, -3.0), padded(ref_logp, mask, -5.0)


def _in_float32(d, B, T):
    return tuple(x.float() if x.is_floating_point() else x for x in _batch_with_holes(d, B, T))


LOGP, OLD = f64([[0.3]]).log(), f64([[0.2]]).log()
# Both tokens in place, the first half as likely under the reference.
PAIR, REF = f64([[0.4, 0.5]]).log(), f64([[0.2, 0.5]]).log()
FIRST_OF_TWO = torch.tensor([[True, False]])
SEQUENCE = {"importance_sampling_level": "sequence"}

POLICY_LOSS = Exercise(
    function=policy_loss,
    points=8,
    minutes=10,
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
        at_scale(
            "300 tokens, a mask with holes",
            lambda d: _batch_with_holes(d, 3, 300),
            epsilon=0.1,
            epsilon_high=0.0,
        ),
        at_scale("float32", lambda d: _in_float32(d, 4, 30), loss_type="dapo", beta=0.1),
    ),
    gradient_of=("logp", "old_logp", "ref_logp"),
    observe=the_loss,
    misconceptions={
        "no-ratio": Misconception(
            "This is REINFORCE: the log-probability in the place of the ratio. In the first update its gradient is the "
            "same. From the second on the answers come from an older policy, and nothing says so. Where is `old_logp`?",
            {"5.21": "values = -logp * (advantages if advantages.ndim == 2 else advantages[:, None])"},
            equation="5.21",
        ),
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
