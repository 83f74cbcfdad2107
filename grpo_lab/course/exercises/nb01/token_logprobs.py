import torch

from grpo_lab.course.exercise import INF, Exercise, Misconception, at_scale, drawn, extreme, f64, given
from grpo_lab.logprobs import token_logprobs

EXERCISE = Exercise(
    function=token_logprobs,
    points=4,
    minutes=15,
    difficulty=2,
    task="Compute the log-probability of each sampled token under the policy, at the temperature that it was sampled "
    "with. Everything else in this course is built on these numbers.",
    hints=(
        "A softmax turns the V logits of one position into V probabilities. Which axis is that? "
        "And of the V numbers you need one.",
        "The logits already stand where their token stands, so nothing has to be shifted. The temperature acts on the "
        "logits, before anything is normalised.",
        "`gather` picks along one axis, and wants an index with as many axes as the tensor. For large logits, look up "
        "what `logsumexp` does that `exp`, `sum` and `log` in a row do not.",
    ),
    cases=(
        given("probabilities 1/2, 1/4, 1/4", f64([[[0.5, 0.25, 0.25]]]).log(), torch.tensor([[1]])),
        given("two words, temperature 1/2", f64([[[1.0, 3.0]]]).log(), torch.tensor([[1]]), temperature=0.5),
        given("two positions", f64([[[0.5, 0.5], [0.9, 0.1]]]).log(), torch.tensor([[0, 1]])),
        drawn("two rows", lambda d: (d.normal(2, 3, 5), d.integers(5, 2, 3))),
        extreme("logits in the thousands", f64([[[1000.0, 0.0, 999.0]]]), torch.tensor([[2]])),
        extreme("a word that is ruled out", f64([[[0.0, -INF, 0.0]]]), torch.tensor([[2]])),
        extreme("the token that was ruled out", f64([[[0.0, -INF], [1.0, -INF]]]), torch.tensor([[1, 0]])),
        at_scale(
            "gaps of hundreds", lambda d: (d.normal(3, 5, 11, scale=200.0), d.integers(11, 3, 5)), temperature=0.3
        ),
    ),
    gradient_of=("logits",),
    misconceptions={
        "off-by-one": Misconception(
            "Your result has one position too few: you have shifted the logits against the tokens, as one does with "
            "the raw output of a language model. Whose job is the shift here? The docstring says what the logits at "
            "position t already predict.",
            {
                "1.1": "z = logits[:, :-1] / temperature",
                "1.2": "logp = z.gather(-1, token_ids[:, 1:].unsqueeze(-1)).squeeze(-1) - z.logsumexp(-1)",
            },
        ),
        "temperature-mismatch": Misconception(
            "The temperature makes no difference to your result. A policy sampled at 0.7 is sharper than the model's "
            "own softmax, so these are the log-probabilities of a policy that did not write the tokens. At which point "
            "of the computation did the sampler use its temperature?",
            {"1.1": "z = _at_least_float32(logits)"},
        ),
        "not-normalised": Misconception(
            "These are the logits of the sampled tokens. Add 10 to all logits of a position: the policy stays the "
            "same, your result does not. What is missing to make a log-probability of it?",
            {"1.2": "logp = z.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)"},
        ),
        "softmax-over-positions": Misconception(
            "Your probabilities add up to 1 over the positions of a row. A policy chooses among words, at each "
            "position anew: over which of the axes B, T, V do its probabilities add up?",
            {
                "1.1": "z = (logits / temperature).log_softmax(1)",
                "1.2": "logp = z.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)",
            },
        ),
        "overflowing-sum": Misconception(
            "Right on paper, but the exponential of a logit of 1000 is infinite in floating point, and so is your "
            "normaliser. What can be subtracted from all logits of a position beforehand without changing the policy?",
            {"1.2": "logp = z.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1) - z.exp().sum(-1).log()"},
        ),
    },
)
