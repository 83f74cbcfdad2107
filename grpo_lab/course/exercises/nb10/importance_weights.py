import torch

from grpo_lab.course.exercise import Exercise, Misconception, at_scale, drawn, extreme, f64, given, log, nan_padded
from grpo_lab.toys.scale import importance_weights

TWO = torch.ones(1, 2, dtype=torch.bool)


def _stale(d, B, T):
    return *d.moved(B, T, scale=0.5), d.ragged(B, T)


EXERCISE = Exercise(
    function=importance_weights,
    points=4,
    minutes=15,
    difficulty=2,
    task="Answers come from a sampler whose weights are some updates old. How much likelier does the trainer find "
    "them? This weight turns what the old sampler wrote into a lesson for the policy of now.",
    hints=(
        "You hold logarithms. A quotient of probabilities is a difference there.",
        "Answers differ in length. What has to be the difference where there is no token?",
        "The probability of an answer is a product over its tokens. What is that for logarithms?",
        "The weight is a number that multiplies the loss, and no path for its gradient.",
    ),
    cases=(
        given("two tokens, likelier and rarer", log(0.4, 0.1), log(0.2, 0.4), TWO),
        given("nothing has moved", log(0.4, 0.1), log(0.4, 0.1), TWO),
        given("the same two tokens, as a sequence", log(0.4, 0.1), log(0.2, 0.4), TWO, "sequence"),
        given("padding after one token", log(0.4, 0.9), log(0.2, 0.1), torch.tensor([[True, False]]), "sequence"),
        drawn("tokens of rows of different lengths", lambda d: _stale(d, 3, 5)),
        drawn("sequences of different lengths", lambda d: _stale(d, 3, 5), level="sequence"),
        extreme("a token at e^-800", f64([[-800.5, -0.5]]), f64([[-801.5, -0.25]]), TWO),
        at_scale("NaN in the padding", lambda d: nan_padded(*_stale(d, 6, 8))),
        at_scale("NaN in the padding, sequences", lambda d: nan_padded(*_stale(d, 6, 8)), level="sequence"),
    ),
    gradient_of=("logp", "sampler_logp"),
    misconceptions={
        "upside-down": Misconception(
            "You divide by the trainer's probability. What the sampler wrote too often has to count less, so whose "
            "probability stands below?",
            {"10.1": "difference = torch.where(mask, sampler_logp - logp, 0)"},
        ),
        "gradient-through-the-weight": Misconception(
            "Your weight has a gradient. Multiplied with the loss it pushes every token a second time.",
            {"10.2": "return difference.exp()", "10.3": "return difference.sum(-1, keepdim=True).exp()"},
        ),
        "padding-counted": Misconception(
            "What stands behind the end of an answer enters your weight. It means nothing, and may be anything.",
            {"10.1": "difference = logp - sampler_logp"},
        ),
        "mean-of-the-sequence": Misconception(
            "You take the mean over the tokens, as GSPO's ratio does. An importance weight is the quotient of the "
            "probabilities of the whole answer: a product, without a root.",
            {"10.3": "return (difference.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)).exp()"},
        ),
    },
)  # fmt: skip
