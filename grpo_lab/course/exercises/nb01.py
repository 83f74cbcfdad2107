"""The exercises of notebook 01."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from grpo_lab.course.exercise import (
    INF,
    NAN,
    Case,
    Draws,
    Exercise,
    as_stability_case,
    drawn_case,
    drawn_stability_case,
    f64,
    handwritten_case,
    stability_case,
    wrong_lines,
)
from grpo_lab.logprobs import completion_mask, token_entropy, token_logprobs
from grpo_lab.policy_gradient import reinforce_loss, score_function_objective, sequence_logprob

TOKEN_LOGPROBS = Exercise(
    function=token_logprobs,
    cases=(
        handwritten_case("probabilities 1/2, 1/4, 1/4", f64([[[0.5, 0.25, 0.25]]]).log(), torch.tensor([[1]])),
        handwritten_case("two words, temperature 1/2", f64([[[1.0, 3.0]]]).log(), torch.tensor([[1]]), temperature=0.5),
        handwritten_case("two positions", f64([[[0.5, 0.5], [0.9, 0.1]]]).log(), torch.tensor([[0, 1]])),
        drawn_case("two rows", lambda draws: (draws.normal(2, 3, 5), draws.integers(5, 2, 3))),
        stability_case("logits in the thousands", f64([[[1000.0, 0.0, 999.0]]]), torch.tensor([[2]])),
        stability_case("a word that is ruled out", f64([[[0.0, -INF, 0.0]]]), torch.tensor([[2]])),
        stability_case("the token that was ruled out", f64([[[0.0, -INF], [1.0, -INF]]]), torch.tensor([[1, 0]])),
        drawn_stability_case(
            "gaps of hundreds",
            lambda draws: (draws.normal(3, 5, 11, scale=200.0), draws.integers(11, 3, 5)),
            temperature=0.3,
        ),
    ),
    gradient_of=("logits",),
    mistakes=(
        wrong_lines(
            "off-by-one",
            {
                "1.15": "z = logits[:, :-1] / temperature",
                "1.2": "logp = z.gather(-1, token_ids[:, 1:].unsqueeze(-1)).squeeze(-1) - z.logsumexp(-1)",
            },
        ),
        wrong_lines(
            "temperature-last",
            {
                "1.15": "z = _at_least_float32(logits)",
                "1.2": "logp = (z.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1) - z.logsumexp(-1)) / temperature",
            },
        ),
        wrong_lines("temperature-mismatch", {"1.15": "z = _at_least_float32(logits)"}),
        wrong_lines("not-normalised", {"1.2": "logp = z.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)"}),
        wrong_lines(
            "softmax-over-positions",
            {
                "1.15": "z = (logits / temperature).log_softmax(1)",
                "1.2": "logp = z.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)",
            },
        ),
        wrong_lines(
            "softmax-then-log", {"1.2": "logp = z.softmax(-1).log().gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)"}
        ),
        wrong_lines(
            "logarithm-missing", {"1.2": "logp = z.softmax(-1).gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)"}
        ),
        wrong_lines(
            "overflowing-sum",
            {"1.2": "logp = z.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1) - z.exp().sum(-1).log()"},
        ),
    ),
)


TOKEN_ENTROPY = Exercise(
    function=token_entropy,
    cases=(
        handwritten_case("four words, all alike", torch.full((1, 1, 4), 2.0, dtype=torch.float64)),
        handwritten_case("probabilities 1/2, 1/4, 1/4", f64([[[0.5, 0.25, 0.25]]]).log()),
        handwritten_case("two words, temperature 1/2", f64([[[1.0, 3.0]]]).log(), temperature=0.5),
        drawn_case("two rows", lambda draws: (draws.normal(2, 3, 5),)),
        drawn_case("forty words, nearly alike", lambda draws: (draws.normal(1, 2, 40, scale=0.3),)),
        stability_case("a policy that is certain", f64([[[2000.0, 0.0, -5.0]]])),
        stability_case("a million from zero", f64([[[1e6, 1e6 + 0.3, 1e6 - 1.2]]])),
        drawn_stability_case("gaps of hundreds", lambda draws: (draws.normal(3, 5, 11, scale=200.0),), temperature=0.3),
    ),
    gradient_of=("logits",),
    mistakes=(
        wrong_lines("temperature-mismatch", {"1.16": "logp = logits.log_softmax(-1)"}),
        wrong_lines("bits-not-nats", {"1.17": "entropy = -(logp.exp() * logp).sum(-1) / 0.6931471805599453"}),
        wrong_lines("log-of-zero", {"1.16": "logp = (_at_least_float32(logits) / temperature).softmax(-1).log()"}),
        wrong_lines(
            "logits-as-logp", {"1.17": "entropy = -(logp.exp() * (logits / temperature)).sum(-1)"}, equation="1.16"
        ),
        wrong_lines("mean-over-words", {"1.17": "entropy = -(logp.exp() * logp).mean(-1)"}),
        wrong_lines("probability-missing", {"1.17": "entropy = -logp.sum(-1)"}),
        wrong_lines(
            "softmax-over-positions", {"1.16": "logp = (_at_least_float32(logits) / temperature).log_softmax(1)"}
        ),
        wrong_lines("likeliest-word-only", {"1.17": "entropy = -logp.amax(-1)"}),
    ),
)


COMPLETION_MASK = Exercise(
    function=completion_mask,
    cases=(
        handwritten_case("an end in the middle", torch.tensor([[5, 2, 7]]), 2),
        handwritten_case("padded with the end token", torch.tensor([[5, 2, 2, 2]]), 2),
        handwritten_case("cut off before its end", torch.tensor([[5, 6, 7]]), 2),
        handwritten_case("the end token is number 0", torch.tensor([[5, 0, 7], [5, 6, 7]]), 0),
        handwritten_case("a second end, further on", torch.tensor([[5, 2, 6, 2, 0]]), 2),
        handwritten_case("rows of different lengths", torch.tensor([[2, 0, 0], [5, 6, 2], [5, 2, 0]]), 2),
        handwritten_case("two kinds of end", torch.tensor([[5, 3, 0, 2], [5, 6, 2, 3]]), [2, 3]),
        drawn_case("as many rows as positions, two ends", lambda draws: (draws.integers(6, 5, 5), [0, 4])),
        drawn_stability_case("300 positions, three ends", lambda draws: (draws.integers(100, 7, 300), [99, 0, 41])),
    ),
    mistakes=(
        wrong_lines("eos-trimmed", {"1.13": "ends_before = is_end.cumsum(-1)"}),
        wrong_lines("eos-by-id", {"1.14": "mask = is_end == 0"}),
        wrong_lines("up-to-the-last-end", {"1.14": "mask = ends_before < is_end.sum(-1, keepdim=True).clamp(min=1)"}),
        wrong_lines(
            "cut-off-forgotten", {"1.14": "mask = torch.arange(is_end.shape[1]) <= is_end.argmax(-1, keepdim=True)"}
        ),
        wrong_lines(
            "one-end-only",
            {"tensor()": "end_ids = torch.tensor(eos_token_id, device=completion_ids.device).reshape(-1)[:1]"},
            equation="1.13",
        ),
        wrong_lines("up-to-the-second-end", {"1.13": "ends_before = (is_end.cumsum(-1) - 1).clamp(min=0)"}),
    ),
)


SEQUENCE_LOGPROB = Exercise(
    function=sequence_logprob,
    cases=(
        handwritten_case("two tokens and padding", f64([[-1.0, -2.0, -4.0]]), torch.tensor([[True, True, False]])),
        handwritten_case("nothing was said", f64([[-1.0, -2.0]]), torch.tensor([[False, False]])),
        handwritten_case(
            "a token that counts after one that does not",
            f64([[-1.0, -2.0, -4.0]]),
            torch.tensor([[True, False, True]]),
        ),
        drawn_case("rows of different lengths", lambda draws: (draws.logp(3, 5), draws.ragged(3, 5))),
        drawn_case("as many rows as positions", lambda draws: (draws.logp(4, 4), draws.ragged(4, 4))),
        stability_case("minus infinity in the padding", f64([[-1.0, -INF]]), torch.tensor([[True, False]])),
        stability_case("a token that was impossible, and counts", f64([[-1.0, -INF]]), torch.tensor([[True, True]])),
        stability_case(
            "NaN in the padding", f64([[-1.0, NAN], [-2.0, -3.0]]), torch.tensor([[True, False], [True, True]])
        ),
    ),
    gradient_of=("logp",),
    mistakes=(
        wrong_lines("mask-ignored", {"1.3": "seq_logp = logp.sum(-1)"}),
        wrong_lines(
            "length-mean", {"1.3": "seq_logp = torch.where(mask, logp, 0).sum(-1) / mask.sum(-1).clamp(min=1)"}
        ),
        wrong_lines("zero-times-infinity", {"1.3": "seq_logp = (logp * mask).sum(-1)"}),
    ),
)


REINFORCE_LOSS = Exercise(
    function=reinforce_loss,
    cases=(
        handwritten_case("one sample", f64([-2.0]), f64([3.0])),
        handwritten_case("one rewarded, one not", f64([0.5, 0.25]).log(), f64([1.0, 0.0])),
        handwritten_case("every weight 1", f64([-1.0, -3.0, -2.0]), f64([1.0, 1.0, 1.0])),
        drawn_case("seven samples", lambda draws: (draws.logp(7), draws.normal(7))),
        drawn_stability_case(
            "300 samples, long and unlikely", lambda draws: (300 * draws.logp(300), draws.normal(300))
        ),
    ),
    gradient_of=("seq_logp", "weights"),
    mistakes=(
        wrong_lines("ascends", {"1.10": "loss = (weights.detach() * seq_logp).mean()"}),
        wrong_lines("weights-not-detached", {"1.10": "loss = -(weights * seq_logp).mean()"}),
        wrong_lines("sum-not-mean", {"1.10": "loss = -(weights.detach() * seq_logp).sum()"}),
        wrong_lines("probability-not-log", {"1.10": "loss = -(weights.detach() * seq_logp.exp()).mean()"}),
        wrong_lines("product-of-means", {"1.10": "loss = -(weights.detach().mean() * seq_logp).mean()"}),
    ),
)


SCORE_FUNCTION_OBJECTIVE = Exercise(
    function=score_function_objective,
    cases=(
        handwritten_case("probabilities 1/4 and 3/4, one reward", f64([0.25, 0.75]).log(), f64([1.0, 0.0])),
        handwritten_case("a reward and a penalty", f64([0.25, 0.75]).log(), f64([3.0, -2.0])),
        drawn_case("eight responses", lambda draws: (draws.normal(8).log_softmax(-1), draws.normal(8))),
        stability_case("one whose probability is too small for a float", f64([-800.0, 0.0]), f64([1.0, 1.0])),
        drawn_stability_case(
            "300 responses, some 200 less likely",
            lambda draws: (draws.normal(300, scale=60.0).log_softmax(-1), draws.normal(300)),
        ),
    ),
    gradient_of=("seq_logp",),
    mistakes=(
        wrong_lines("nothing-stopped", {"1.11": "objective = (seq_logp.exp() * rewards * seq_logp).sum()"}),
        wrong_lines("probability-missing", {"1.11": "objective = (rewards * seq_logp).sum()"}),
        wrong_lines(
            "wrong-factor-stopped", {"1.11": "objective = (seq_logp.exp() * rewards * seq_logp.detach()).sum()"}
        ),
        wrong_lines("expected-reward", {"1.11": "objective = (seq_logp.exp() * rewards).sum()"}),
    ),
)


def sample_tokens(
    model: Callable,
    prompt_ids: Int[Tensor, "B L"],
    prompt_mask: Bool[Tensor, "B L"],
    uniform: Float[Tensor, "B T"],
    end: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
) -> Int[Tensor, "B T"]:
    """Sample a completion for each prompt, token by token.

    The random numbers are an argument, so every correct sampler returns the same tokens. For each position:

    1. Divide the logits by the temperature, and take the softmax.
    2. Keep only the candidates: the smallest set of most likely tokens whose probabilities sum to `top_p` or more. Set
       the other probabilities to 0, and divide those of the candidates by their sum.
    3. Go through the token ids in ascending order and add up their probabilities. Draw the first token at which this
       cumulative sum exceeds the random number of its row and position.

    Example:
        With probabilities 0.5, 0.2, 0.3 of the tokens 0, 1, 2 and `top_p` 0.7, the candidates are 0 and 2, with the
        probabilities 0.625 and 0.375. The random number 0.6 draws token 0, and 0.7 draws token 2.

    Args:
        model: A function that takes token ids (B, S) and a mask (B, S), False at padding, and returns logits (B, S, V).
            The logits at a position are those of the next token.
        prompt_ids: The prompts, padded on the left. The padding token may be the end token.
        prompt_mask: Mask of the prompts, False at padding.
        uniform: A random number for each row and position of the completions, at least 0 and below 1.
        end: The end token. Once a completion has ended, every further position of its row is this token.
        temperature: The number that the logits are divided by.
        top_p: The least sum of the candidates' probabilities. With 1, every token is a candidate.

    Returns:
        The token ids of the completions, without the prompts.
    """
    ids, mask = prompt_ids, prompt_mask
    ended = torch.zeros(len(prompt_ids), dtype=torch.bool)
    for u in uniform.T:
        logits = model(ids, mask)[:, -1]  # [last]
        p = (logits / temperature).softmax(-1)  # B V
        sorted_p, order = p.sort(descending=True)
        mass_above = sorted_p.cumsum(-1) - sorted_p  # [before]
        p = p.masked_fill((mass_above >= top_p).gather(-1, order.argsort(-1)), 0)
        p = p / p.sum(-1, keepdim=True)  # [anew]
        token = (p.cumsum(-1) <= u[:, None]).sum(-1)  # [draw]
        token = token.masked_fill(ended, end)  # [filled]
        ended = token == end  # [ended]
        ids = torch.cat([ids, token[:, None]], dim=1)
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)  # [mask]
    return ids[:, prompt_ids.shape[1] :]


END = 0


class MeanContextModel(nn.Module):
    """A language model that predicts from the last token and the mean embedding of all unmasked tokens so far."""

    def __init__(self, draws: Draws, V: int, width: int = 4, scale: float = 1.5):
        super().__init__()
        self.context_embedding, self.last_embedding = (
            nn.Embedding.from_pretrained(draws.normal(V, width)) for _ in range(2)
        )
        self.head = draws.normal(width, V, scale=scale)

    @torch.no_grad()
    def forward(self, ids, mask):
        weights = mask.double()[..., None]
        context = (self.context_embedding(ids) * weights).cumsum(1) / weights.cumsum(1).clamp(min=1)
        return (context + self.last_embedding(ids)) @ self.head


def _sampling_case(
    label: str,
    B: int,
    L: int,
    T: int,
    V: int,
    is_padded: bool = True,
    largest_uniform: float = 1.0,
    **settings,
) -> Case:
    """Return a case with B prompts, T random numbers for each, and `settings` of `sample_tokens`.

    The prompts have L tokens; with `is_padded` they have 1 to L, and the end token as padding. The random numbers lie
    between 0 and `largest_uniform`.
    """

    def build(seed: int) -> tuple[tuple, dict]:
        draws = Draws(seed)
        model = MeanContextModel(draws, V)
        mask = draws.ragged(B, L).flip(1) if is_padded else torch.ones(B, L).bool()
        ids = (1 + draws.integers(V - 1, B, L)).masked_fill(~mask, END)
        uniform = largest_uniform * torch.rand(B, T, generator=draws.generator, dtype=torch.float64)
        return (model, ids, mask, uniform, END), settings

    return Case(build, label)


SAMPLE_TOKENS = Exercise(
    function=sample_tokens,
    cases=(
        _sampling_case("one prompt, one token", B=1, L=2, T=1, V=3, is_padded=False),
        _sampling_case("three prompts of one length", B=3, L=2, T=4, V=4, is_padded=False),
        _sampling_case("padded on the left, with the end token", B=4, L=5, T=4, V=4),
        _sampling_case("as many prompts as tokens of a prompt", B=5, L=5, T=6, V=5),
        _sampling_case("temperature 1/2", B=4, L=3, T=5, V=6, temperature=0.5),
        _sampling_case("temperature 3", B=6, L=3, T=5, V=6, temperature=3.0),
        _sampling_case("top-p 0.7", B=6, L=3, T=5, V=6, top_p=0.7),
        _sampling_case("top-p 0.9 at temperature 2", B=8, L=3, T=6, V=8, top_p=0.9, temperature=2.0),
        _sampling_case("top-p so small that one token is left", B=6, L=3, T=6, V=8, top_p=0.01),
        as_stability_case(_sampling_case("forty tokens", B=5, L=4, T=40, V=12, top_p=0.95)),
        as_stability_case(
            _sampling_case("every random number is 0", B=8, L=3, T=6, V=9, top_p=0.3, largest_uniform=0.0)
        ),
        as_stability_case(_sampling_case("nearly greedy", B=6, L=3, T=8, V=9, temperature=1e-3)),
    ),
    mistakes=(
        wrong_lines("padding-attended", {"[last]": "logits = model(ids, torch.ones_like(mask))[:, -1]"}),
        wrong_lines("new-tokens-hidden", {"[mask]": "mask = torch.cat([mask, torch.zeros_like(mask[:, :1])], dim=1)"}),
        wrong_lines(
            "read-as-if-padded-right", {"[last]": "logits = model(ids, mask)[torch.arange(len(ids)), mask.sum(-1) - 1]"}
        ),
        wrong_lines("ended-by-padding", {"zeros()": "ended = (prompt_ids == end).any(-1)"}),
        wrong_lines("goes-on-behind-the-end", {"[filled]": ""}),
        wrong_lines("all-end-together", {"[ended]": "ended = (token == end).any().expand(len(token))"}),
        wrong_lines("temperature-times", {"softmax()": "p = (logits * temperature).softmax(-1)"}),
        wrong_lines(
            "temperature-last",
            {
                "softmax()": "p = logits.softmax(-1)",
                "[anew]": "p = p ** (1 / temperature)\np = p / p.sum(-1, keepdim=True)",
            },
        ),
        wrong_lines(
            "crossing-token-lost",
            {"[before]": "mass_above = sorted_p.cumsum(-1).clamp(max=1 - 1e-9)\nmass_above[:, 0] = 0"},
        ),
        wrong_lines("not-divided-anew", {"[anew]": ""}),
        wrong_lines("greedy", {"[draw]": "token = p.argmax(-1)"}),
        wrong_lines(
            "in-the-order-of-probability",
            {
                "[draw]": "rank = (p.gather(-1, order).cumsum(-1) <= u[:, None]).sum(-1, keepdim=True)\n"
                "token = order.gather(-1, rank)[:, 0]"
            },
        ),
        wrong_lines("at-most-top-p", {"[before]": "mass_above = sorted_p.cumsum(-1) * (1 - 1e-12)"}),
    ),
)
