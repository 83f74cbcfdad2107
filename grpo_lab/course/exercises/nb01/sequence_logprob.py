"""The exercise sequence_logprob: wrong answers, as people write them, then what is said about each."""

import torch

from grpo_lab.course.changed import changed
from grpo_lab.course.exercise import Exercise, Misconception
from grpo_lab.course.exercises._inputs import at_scale, drawn, extreme, f64, given, padded
from grpo_lab.policy_gradient import sequence_logprob

INF = float("inf")


EXERCISE = Exercise(
    function=sequence_logprob,
    notebook="01",
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
        given("one token", f64([[-0.5]]), torch.tensor([[True]])),
        given("nothing was said", f64([[-1.0, -2.0]]), torch.tensor([[False, False]])),
        given("minus infinity in the padding", f64([[-1.0, -INF]]), torch.tensor([[True, False]])),
        given("infinity in front of the response", f64([[INF, -1.0, -2.0]]), torch.tensor([[False, True, True]])),
        given("three rows of one token", f64([[-1.0], [-2.0], [-4.0]]), torch.tensor([[True], [False], [True]])),
        drawn("rows of different lengths", lambda d: (d.logp(3, 5), d.ragged(3, 5))),
        drawn("as many rows as positions", lambda d: (d.logp(4, 4), d.ragged(4, 4))),
        extreme(
            "NaN in the padding", f64([[-1.0, float("nan")], [-2.0, -3.0]]), torch.tensor([[True, False], [True, True]])
        ),
        extreme("a token that was impossible", f64([[-INF, -1.0], [-2.0, -3.0]]), torch.ones(2, 2, dtype=torch.bool)),
        extreme("tokens that were all but certain", f64([[-1e-7, -3e-7]]), torch.tensor([[True, True]])),
        extreme("tokens hardly ever drawn", f64([[-1e5, -3e5]]), torch.tensor([[True, True]])),
        at_scale("300 tokens, a mask with holes", lambda d: (d.logp(7, 300), d.holes(7, 300))),
        at_scale("tokens that were almost impossible", lambda d: (100 * d.logp(3, 20), d.holes(3, 20))),
        at_scale("NaN wherever nothing counts", lambda d: (padded(d.logp(5, 9), m := d.holes(5, 9)), m)),
        at_scale("float32", lambda d: (d.logp(4, 30).float(), d.ragged(4, 30))),
    ),
    gradient_of=("logp",),
    misconceptions=(
        Misconception(
            "mask-ignored",
            changed(sequence_logprob, ("torch.where(mask, logp, 0)", "logp")),
            "The padding counts in your sum. Those positions were never chosen by the policy. Which of them does the "
            "mask let in?",
            "1.7",
        ),
        Misconception(
            "length-mean",
            changed(sequence_logprob, (".sum(-1)", ".sum(-1) / mask.sum(-1).clamp(min=1)")),
            "You return the mean over the tokens. That is a useful number elsewhere, but it makes a response of a "
            "hundred tokens as likely as one of a single token. What do logarithms of multiplied probabilities do?",
            "1.7",
        ),
        Misconception(
            "mean-over-padding",
            changed(sequence_logprob, (".sum(-1)", ".mean(-1)")),
            "You divide by the width of the tensor, padding included: the same response gets another value when its "
            "batch has a longer neighbour. Should there be a division at all?",
            "1.7",
        ),
        Misconception(
            "zero-times-infinity",
            changed(sequence_logprob, ("torch.where(mask, logp, 0)", "(logp * mask)")),
            "NaN: you multiply by the mask, and behind the end there may stand minus infinity. What is zero times "
            "that? Look for an operation that *chooses* between two values.",
            "1.7",
        ),
        Misconception(
            "probability-not-log",
            changed(sequence_logprob, (".sum(-1)", ".sum(-1).exp()")),
            "You return a probability. For a response of a thousand tokens it is zero in floating point. "
            "What does the name of the function promise?",
            "1.7",
        ),
        Misconception(
            "log-of-a-sum",
            changed(sequence_logprob, ("logp, 0).sum(-1)", "logp.exp(), 0).sum(-1).log()")),
            "You add up probabilities and take the logarithm of the sum. That would be the chance that one *or* the "
            "other token is said. A response says one *and* then the other.",
            "1.7",
        ),
        Misconception(
            "over-the-rows",
            changed(sequence_logprob, (".sum(-1)", ".sum(0)")),
            "You add up over the rows: token t of all responses together. Which axis belongs to a single response? "
            "(Where there are as many rows as positions, the shape will not tell you.)",
            "1.7",
        ),
    ),
)
