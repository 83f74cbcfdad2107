import torch

from grpo_lab.course.exercise import Exercise, Misconception, at_scale, drawn, extreme, f64, given
from grpo_lab.logprobs import token_entropy

EXERCISE = Exercise(
    function=token_entropy,
    points=3,
    minutes=10,
    difficulty=2,
    task="Measure how undecided the policy was at each position. When this number falls to zero in a run, "
    "nothing new is tried any more.",
    hints=(
        "An average of something over the policy's own choice. Of what, and with which weights?",
        "You need both the probabilities and their logarithms. Compute one of them safely, and get the other from it.",
        "Check the two ends: a policy that is sure of one word has an entropy of 0, a uniform one of log V.",
    ),
    cases=(
        given("four words, all alike", torch.full((1, 1, 4), 2.0, dtype=torch.float64)),
        given("probabilities 1/2, 1/4, 1/4", f64([[[0.5, 0.25, 0.25]]]).log()),
        given("two words, temperature 1/2", f64([[[1.0, 3.0]]]).log(), temperature=0.5),
        drawn("two rows", lambda d: (d.normal(2, 3, 5),)),
        extreme("a policy that is certain", f64([[[2000.0, 0.0, -5.0]]])),
        extreme("a million from zero", f64([[[1e6, 1e6 + 0.3, 1e6 - 1.2]]])),
        at_scale("gaps of hundreds", lambda d: (d.normal(3, 5, 11, scale=200.0),), temperature=0.3),
    ),
    gradient_of=("logits",),
    misconceptions={
        "temperature-mismatch": Misconception(
            "The temperature makes no difference to your result, so this is the entropy of a policy that did not "
            "sample the tokens. A hot policy is less decided than a cold one: where does it enter?",
            {"1.7": "logp = logits.log_softmax(-1)"},
        ),
        "bits-not-nats": Misconception(
            "Off by the same factor everywhere, about 1.44: your logarithm has base 2. All log-probabilities of the "
            "course are natural logarithms. Which unit does the docstring promise?",
            {"1.8": "entropy = -(logp.exp() * logp).sum(-1) / 0.6931471805599453"},
        ),
        "log-of-zero": Misconception(
            "NaN for a policy that is certain: a probability so small that it is 0 in floating point has a logarithm "
            "of minus infinity, and zero times that is not a number. Could you have the logarithm without ever forming "
            "the probability first?",
            {"1.7": "logp = (_at_least_float32(logits) / temperature).softmax(-1).log()"},
        ),
        "logits-as-logp": Misconception(
            "You average the logits in the place of log-probabilities. Add 10 to all logits: the policy is the same, "
            "your entropy is not. What has to happen to logits first?",
            {"1.8": "entropy = -(logp.exp() * (logits / temperature)).sum(-1)"},
            equation="1.7",
        ),
    },
)
