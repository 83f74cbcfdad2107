from grpo_lab.course.exercise import Exercise, Misconception, at_scale, drawn, extreme, f64, given, log, padded
from grpo_lab.course.exercises.nb05.importance_ratio import TWO, _all_one_way, _ragged, _with_holes, under_the_mask
from grpo_lab.objective import gspo_token_ratio


def _old_nan_in_the_padding(d, B, T):
    logp, old_logp, mask = _with_holes(d, B, T)
    return logp, padded(old_logp, mask), mask


EXERCISE = Exercise(
    function=gspo_token_ratio,
    points=3,
    minutes=15,
    difficulty=2,
    task="Give every token the value of its sequence's ratio, but the gradient of its own log-probability. With it "
    "GSPO can take an advantage for each token.",
    hints=(
        "Value and gradient are asked for separately. Which expression has the value 1, whatever x is, and yet a "
        "gradient in x?",
        "x - sg[x] is 0 in value, and its gradient is that of x. What does exp make of a 0?",
        "`importance_ratio` gives you the sequence ratio, of shape (B, 1). Should a gradient flow through it?",
    ),
    cases=(
        given("two tokens, twice and half as likely", log(0.4, 0.1), log(0.2, 0.2), TWO),
        given("nothing has moved", f64([[-1.0, -2.0]]), f64([[-1.0, -2.0]]), TWO),
        given("two tokens, both likelier", log(0.4, 0.3), log(0.2, 0.1), TWO),
        drawn("rows of different lengths", lambda d: _ragged(d, 3, 5)),
        drawn("one row empty", lambda d: _with_holes(d, 2, 3)),
        extreme("probabilities of e^-800", f64([[-800.0, -801.0]]), f64([[-801.0, -800.5]]), TWO),
        at_scale("300 tokens that all moved the same way", lambda d: _all_one_way(d, 3, 300)),
        at_scale("NaN wherever nothing counts", lambda d: _old_nan_in_the_padding(d, 5, 9)),
    ),
    gradient_of=("logp", "old_logp"),
    observe=under_the_mask,
    misconceptions={
        "sequence-not-detached": Misconception(
            "The values are right. But a gradient flows through the sequence ratio, too, so every token is pushed "
            "twice: by itself, and by the whole sequence. Which of your two factors should only be a number?",
            {"importance_ratio()": "sequence = importance_ratio(logp, old_logp, mask, 'sequence')"},
        ),
        "no-gradient": Misconception(
            "The values are right, but no gradient reaches `logp`. A factor that is x - x is 0 with gradient 0. Which "
            "of the two x has to be stopped, and nothing behind it?",
            {"5.4": "ratio = sequence * torch.where(mask, logp - logp, 0).exp()"},
        ),
        "sequence-ratio": Misconception(
            "The values are right, but this is GSPO itself: each token's entry moves all tokens of its sequence, each "
            "by a share. Here an entry belongs to its own token. Look at the second factor of Eq. (5.4).",
            {"5.4": "ratio = importance_ratio(logp, old_logp, mask, 'sequence').expand_as(logp)"},
        ),
        "ratio-twice": Misconception(
            "You multiply the sequence ratio by the token's own ratio, so the move is counted twice. What should the "
            "*value* of the second factor be?",
            {"5.4": "ratio = sequence * torch.where(mask, logp - old_logp.detach(), 0).exp()"},
        ),
    },
)
