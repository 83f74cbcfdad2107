import torch

from grpo_lab.course.exercise import INF, NAN, Exercise, Misconception, drawn, extreme, f64, given
from grpo_lab.policy_gradient import sequence_logprob

EXERCISE = Exercise(
    function=sequence_logprob,
    points=2,
    minutes=8,
    difficulty=1,
    task="From the log-probabilities of the tokens, that of the whole response.",
    hints=(
        "Probabilities of choices that follow one another are multiplied. What happens to their logarithms?",
        "What stands behind the end was never chosen, and may hold anything, even an infinity. "
        "Multiplying by zero does not remove an infinity; choosing does.",
    ),
    cases=(
        given("two tokens and padding", f64([[-1.0, -2.0, -4.0]]), torch.tensor([[True, True, False]])),
        given("nothing was said", f64([[-1.0, -2.0]]), torch.tensor([[False, False]])),
        drawn("rows of different lengths", lambda d: (d.logp(3, 5), d.ragged(3, 5))),
        drawn("as many rows as positions", lambda d: (d.logp(4, 4), d.ragged(4, 4))),
        extreme("minus infinity in the padding", f64([[-1.0, -INF]]), torch.tensor([[True, False]])),
        extreme("NaN in the padding", f64([[-1.0, NAN], [-2.0, -3.0]]), torch.tensor([[True, False], [True, True]])),
    ),
    gradient_of=("logp",),
    misconceptions={
        "mask-ignored": Misconception(
            "The padding counts in your sum. Those positions were never chosen by the policy. Which of them does the "
            "mask let in?",
            {"1.3": "seq_logp = logp.sum(-1)"},
        ),
        "length-mean": Misconception(
            "You return the mean over the tokens. That is a useful number elsewhere, but it makes a response of a "
            "hundred tokens as likely as one of a single token. What do logarithms of multiplied probabilities do?",
            {"1.3": "seq_logp = torch.where(mask, logp, 0).sum(-1) / mask.sum(-1).clamp(min=1)"},
        ),
        "mean-over-padding": Misconception(
            "You divide by the width of the tensor, padding included: the same response gets another value when its "
            "batch has a longer neighbour. Should there be a division at all?",
            {"1.3": "seq_logp = torch.where(mask, logp, 0).mean(-1)"},
        ),
        "zero-times-infinity": Misconception(
            "NaN: you multiply by the mask, and behind the end there may stand minus infinity. What is zero times "
            "that? Look for an operation that *chooses* between two values.",
            {"1.3": "seq_logp = (logp * mask).sum(-1)"},
        ),
    },
)
