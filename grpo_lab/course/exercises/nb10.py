"""The exercises of notebook 10."""

import torch

from grpo_lab.course.exercise import Exercise, at_scale, drawn, extreme, f64, given, log, nan_padded
from grpo_lab.toys.scale import answer_ages, importance_weights, straggler_bubble


def lengths(*tokens: int):
    return torch.tensor(tokens)


def _batch(d, B, slots, below=40):
    return 1 + d.integers(below, B), slots


STRAGGLER_BUBBLE = Exercise(
    function=straggler_bubble,
    cases=(
        given("two slots, 4 tokens and 1", lengths(4, 1), 2),
        given("the free slot takes the next", lengths(3, 1, 2), 2),
        given("a long answer comes last", lengths(1, 1, 1, 9), 3),
        given("more slots than answers", lengths(4, 4), 3),
        given("one slot never waits", lengths(5, 1, 7), 1),
        drawn("a slot each", lambda d: _batch(d, 9, 9)),
        drawn("few slots", lambda d: _batch(d, 23, 4)),
        extreme("one answer of a million tokens", lengths(*[1] * 50, 10**6), 51),
        at_scale("a thousand answers, 64 slots", lambda d: _batch(d, 1000, 64, 16_384)),
    ),
    mistakes={
        "busy-fraction": {"10.2": "bubble = int(lengths.sum()) / (slots * max(busy))"},
        "the-longest-answer": {"10.2": "bubble = 1 - int(lengths.sum()) / (slots * int(lengths.max()))"},
        "in-turn": {
            "tolist()": "for i, length in enumerate(lengths.tolist()):",
            "10.1": "busy[i % slots] += length",
            "heappush()": "pass",
        },
        "in-batches": lambda n, slots: 1 - float(n.sum()) / (slots * sum(int(part.max()) for part in n.split(slots))),
        "longest-first": {"tolist()": "for length in sorted(lengths.tolist(), reverse=True):"},
    },
)


def _queue(d, B, slots, batch, group=1, below=40):
    return 1 + d.integers(below, B), slots, batch, group


ANSWER_AGES = Exercise(
    function=answer_ages,
    cases=(
        given("two slots, an update for each two", lengths(3, 1, 1, 1), 2, 2),
        given("one slot, an update for each answer: always fresh", lengths(5, 1, 7), 1, 1),
        given("two slots, an update for each answer", lengths(2, 3, 2, 3), 2, 1),
        given("one long answer, others pass it", lengths(9, 1, 1, 1, 1, 1, 1), 2, 2),
        given("all end together", lengths(4, 4, 4, 4, 4, 4, 4, 4), 4, 2),
        given("a group waits for its long answer", lengths(9, 1, 1, 1, 1, 1), 2, 2, 2),
        drawn("as many slots as an update takes", lambda d: _queue(d, 30, 6, 6)),
        drawn("four times as many", lambda d: _queue(d, 60, 12, 3)),
        drawn("groups of four", lambda d: _queue(d, 60, 6, 8, 4)),
        extreme("one answer of a million tokens", lengths(10**6, *[1] * 50), 2, 10),
        at_scale("a thousand answers", lambda d: _queue(d, 1000, 64, 16, 8, 16_384)),
    ),
    mistakes={
        "in-the-order-given": {"10.7": "age = torch.arange(len(end)) // batch - version"},
        "difference-first": {
            "10.6": "version = torch.searchsorted(end[order], begin, right=True)",
            "10.7": "age = (order.argsort() - version) // batch",
        },
        "older-weights-at-the-start": {"10.6": "version = torch.searchsorted(end[order], begin) // batch"},
        "groups-not-waited-for": {"repeat_interleave()": "end = begin + lengths"},
        "version-forgotten": {"10.7": "age = order.argsort() // batch"},
    },
)


TWO = torch.ones(1, 2, dtype=torch.bool)


def _stale(d, B, T):
    return *d.moved(B, T, scale=0.5), d.ragged(B, T)


IMPORTANCE_WEIGHTS = Exercise(
    function=importance_weights,
    cases=(
        given("two tokens, likelier and rarer", log(0.4, 0.1), log(0.2, 0.4), TWO),
        given("nothing has moved", log(0.4, 0.1), log(0.4, 0.1), TWO),
        given("the same two tokens, as a sequence", log(0.4, 0.1), log(0.2, 0.4), TWO, "sequence"),
        given("padding after one token", log(0.4, 0.9), log(0.2, 0.1), torch.tensor([[True, False]]), "sequence"),
        drawn("tokens of rows of different lengths", lambda d: _stale(d, 3, 5)),
        drawn("sequences of different lengths", lambda d: _stale(d, 3, 5), level="sequence"),
        extreme("a token at e^-800", f64([[-800.5, -0.5]]), f64([[-801.5, -0.25]]), TWO),
        extreme("a token that the sampler hardly ever writes", f64([[-0.5, -1.0]]), f64([[-40.5, -1.0]]), TWO),
        at_scale("NaN in the padding", lambda d: nan_padded(*_stale(d, 6, 8))),
        at_scale("NaN in the padding, sequences", lambda d: nan_padded(*_stale(d, 6, 8)), level="sequence"),
    ),
    gradient_of=("logp", "sampler_logp"),
    mistakes={
        "upside-down": {"10.8": "difference = torch.where(mask, sampler_logp - logp, 0)"},
        "gradient-through-the-weight": {
            "10.9": "return difference.exp()",
            "10.10": "return difference.sum(-1, keepdim=True).exp()",
        },
        "padding-counted": {"10.8": "difference = logp - sampler_logp"},
        "mean-of-the-sequence": {
            "10.10": "return (difference.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)).exp()"
        },
    },
)
