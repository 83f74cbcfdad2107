"""The exercises of notebook 01."""

import torch

from grpo_lab.course.exercise import INF, NAN, Exercise, Misconception, at_scale, drawn, extreme, f64, given
from grpo_lab.logprobs import completion_mask, token_entropy, token_logprobs
from grpo_lab.policy_gradient import reinforce_loss, score_function_objective, sequence_logprob

TOKEN_LOGPROBS = Exercise(
    function=token_logprobs,
    points=4,
    minutes=4,
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
        "softmax-then-log": Misconception(
            "You take the logarithm of a softmax. Right on paper, but a probability that is 0 in floating point has a "
            "logarithm of minus infinity, and no gradient. Which function has the logarithm without the probability?",
            {"1.2": "logp = z.softmax(-1).log().gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)"},
        ),
        "logarithm-missing": Misconception(
            "These are probabilities. Those of tokens that follow one another are multiplied, and a thousand of them "
            "are 0 to a computer. What does the docstring promise?",
            {"1.2": "logp = z.softmax(-1).gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)"},
        ),
        "overflowing-sum": Misconception(
            "Right on paper, but the exponential of a logit of 1000 is infinite in floating point, and so is your "
            "normaliser. What can be subtracted from all logits of a position beforehand without changing the policy?",
            {"1.2": "logp = z.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1) - z.exp().sum(-1).log()"},
        ),
    },
)


TOKEN_ENTROPY = Exercise(
    function=token_entropy,
    points=3,
    minutes=3,
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
        drawn("forty words, nearly alike", lambda d: (d.normal(1, 2, 40, scale=0.3),)),
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


COMPLETION_MASK = Exercise(
    function=completion_mask,
    points=3,
    minutes=4,
    difficulty=2,
    task="Mark the positions that belong to the completion. Get this wrong and the policy is never rewarded for "
    "stopping, or is trained on padding.",
    hints=(
        "Was it the policy's choice to end the response? Then that token is one of its actions. What follows is not.",
        "The padding token may be the end token itself. So which token stands at a position cannot decide. "
        "What happened before that position can.",
        "Count, for each position, the end tokens that stand strictly before it. `cumsum` counts the position itself "
        "as well. `torch.isin` takes one end token as well as several.",
    ),
    cases=(
        given("an end in the middle", torch.tensor([[5, 2, 7]]), 2),
        given("padded with the end token", torch.tensor([[5, 2, 2, 2]]), 2),
        given("cut off before its end", torch.tensor([[5, 6, 7]]), 2),
        given("the end token is number 0", torch.tensor([[5, 0, 7], [5, 6, 7]]), 0),
        given("a second end, further on", torch.tensor([[5, 2, 6, 2, 0]]), 2),
        given("rows of different lengths", torch.tensor([[2, 0, 0], [5, 6, 2], [5, 2, 0]]), 2),
        given("two kinds of end", torch.tensor([[5, 3, 0, 2], [5, 6, 2, 3]]), [2, 3]),
        drawn("as many rows as positions, two ends", lambda d: (d.integers(6, 5, 5), [0, 4])),
        at_scale("300 positions, three ends", lambda d: (d.integers(100, 7, 300), [99, 0, 41])),
    ),
    misconceptions={
        "eos-trimmed": Misconception(
            "You cut the end token off. The policy *chose* to stop there, and a choice that does not count is never "
            "rewarded: trained like this, responses grow until they are one token repeated. "
            "On which side of the border does the first end token lie?",
            {"1.9": "ends_before = is_end.cumsum(-1)"},
        ),
        "eos-by-id": Misconception(
            "You decide by *which* token stands at a position. That drops the end token, and lets in whatever follows "
            "it as long as it is another token. What makes a position padding: what stands there, or what came before?",
            {"1.10": "mask = is_end == 0"},
        ),
        "up-to-the-last-end": Misconception(
            "Your mask reaches to the last end token of the row. When rows are padded with the end token, that is all "
            "of the padding. Which of several end tokens ended the response?",
            {"1.10": "mask = ends_before < is_end.sum(-1, keepdim=True).clamp(min=1)"},
        ),
        "cut-off-forgotten": Misconception(
            "A row without an end token keeps only its first position. `argmax` of a row of zeros is 0: it says "
            "'found at the very beginning' when nothing was found. What should hold for a response that was cut off?",
            {"1.10": "mask = torch.arange(is_end.shape[1]) <= is_end.argmax(-1, keepdim=True)"},
        ),
        "one-end-only": Misconception(
            "You look for the first of the end tokens in the list and overlook the others. Qwen2-Instruct has two: "
            "which tokens may end a response?",
            {"tensor()": "ends = torch.tensor(eos_token_id, device=completion_ids.device).reshape(-1)[:1]"},
            equation="1.9",
        ),
    },
)


SEQUENCE_LOGPROB = Exercise(
    function=sequence_logprob,
    points=2,
    minutes=3,
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
        given(
            "a token that counts behind one that does not",
            f64([[-1.0, -2.0, -4.0]]),
            torch.tensor([[True, False, True]]),
        ),
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


REINFORCE_LOSS = Exercise(
    function=reinforce_loss,
    points=3,
    minutes=3,
    difficulty=1,
    task="Write the loss whose gradient is minus the Monte-Carlo estimate of the policy gradient. Its value says "
    "nothing; its gradient is everything.",
    hints=(
        "Optimisers go downhill, and you want the reward to go up.",
        "The weights are numbers from outside. What should a change of the policy do to them?",
        "An estimate of an expectation from B samples: each sample brings its own product, and then they are averaged.",
    ),
    cases=(
        given("one sample", f64([-2.0]), f64([3.0])),
        given("one rewarded, one not", f64([0.5, 0.25]).log(), f64([1.0, 0.0])),
        given("every weight 1", f64([-1.0, -3.0, -2.0]), f64([1.0, 1.0, 1.0])),
        drawn("seven samples", lambda d: (d.logp(7), d.normal(7))),
        at_scale("300 samples, long and unlikely", lambda d: (300 * d.logp(300), d.normal(300))),
    ),
    gradient_of=("seq_logp", "weights"),
    misconceptions={
        "ascends": Misconception(
            "Right except for its sign. An optimiser makes the loss smaller: as you wrote it, a rewarded response "
            "becomes less likely with every step.",
            {"1.5": "loss = (weights.detach() * seq_logp).mean()"},
        ),
        "weights-not-detached": Misconception(
            "The value is right, but a gradient flows into the weights. If they depend on the policy, as a KL penalty "
            "in the reward does, that adds a second, unwanted term. What are weights to the policy gradient?",
            {"1.5": "loss = -(weights * seq_logp).mean()"},
        ),
        "sum-not-mean": Misconception(
            "You add the samples up. Double the batch and your step doubles too, at the same learning rate. What "
            "estimates an expectation?",
            {"1.5": "loss = -(weights.detach() * seq_logp).sum()"},
        ),
        "probability-not-log": Misconception(
            "You weight the probability, not its logarithm. The samples are *drawn* from the policy, so each counts "
            "with its probability already; yours count with its square. Which factor does the log-derivative trick "
            "leave?",
            {"1.5": "loss = -(weights.detach() * seq_logp.exp()).mean()"},
        ),
        "product-of-means": Misconception(
            "This is the product of two averages, as comes out, too, where a column meets a row and every reward is "
            "paired with every response. Then each gets the same push, whatever it earned. Which reward belongs to "
            "which response?",
            {"1.5": "loss = -(weights.detach().mean() * seq_logp).mean()"},
        ),
    },
)


SCORE_FUNCTION_OBJECTIVE = Exercise(
    function=score_function_objective,
    points=3,
    minutes=4,
    difficulty=2,
    task="Sum over all responses to get the expectation of the REINFORCE estimate exactly. Its gradient is that of the "
    "expected reward: the log-derivative trick, as a function that you can check.",
    hints=(
        "An expectation under the policy is a sum over all responses, each weighted by its probability.",
        "The symbol sg[.] freezes what stands in it: it counts as a number. What stands in it here, and what does not?",
        "Differentiate by hand for two responses. The gradient by log pi(y) should be pi(y) R(y) and nothing else.",
    ),
    cases=(
        given("probabilities 1/4 and 3/4, one reward", f64([0.25, 0.75]).log(), f64([1.0, 0.0])),
        given("a reward and a penalty", f64([0.25, 0.75]).log(), f64([3.0, -2.0])),
        drawn("eight responses", lambda d: (d.normal(8).log_softmax(-1), d.normal(8))),
        extreme("one whose probability is too small for a float", f64([-800.0, 0.0]), f64([1.0, 1.0])),
        at_scale(
            "300 responses, some 200 less likely", lambda d: (d.normal(300, scale=60.0).log_softmax(-1), d.normal(300))
        ),
    ),
    gradient_of=("seq_logp",),
    misconceptions={
        "nothing-stopped": Misconception(
            "The value is right, the gradient is not: the probability in front carries a gradient as well, so the "
            "product rule adds a second term. Which factor is only a weight?",
            {"1.6": "objective = (seq_logp.exp() * rewards * seq_logp).sum()"},
        ),
        "probability-missing": Misconception(
            "Every response counts the same in your sum. When you *sample*, likely ones turn up more often, and that "
            "does the weighting. What does it when all are listed once?",
            {"1.6": "objective = (rewards * seq_logp).sum()"},
        ),
        "wrong-factor-stopped": Misconception(
            "You stopped the gradient of the logarithm and left that of the probability. Which of the two is "
            "differentiated in Eq. (1.d), and which only weights it?",
            {"1.6": "objective = (seq_logp.exp() * rewards * seq_logp.detach()).sum()"},
        ),
        "expected-reward": Misconception(
            "This is Eq. (1.4), the expected reward itself. Its gradient is the one you are after, but here you are to "
            "get it the way sampling does: with a frozen probability, and something live to carry the gradient.",
            {"1.6": "objective = (seq_logp.exp() * rewards).sum()"},
        ),
    },
)
