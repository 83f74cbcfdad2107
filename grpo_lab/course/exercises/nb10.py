"""The exercises of notebook 10."""

import torch

from grpo_lab.course.exercise import Exercise, Misconception, at_scale, drawn, extreme, f64, given, log, nan_padded
from grpo_lab.toys.scale import answer_ages, importance_weights, straggler_bubble


def lengths(*tokens: int):
    return torch.tensor(tokens)


def _batch(d, B, slots, below=40):
    return 1 + d.integers(below, B), slots


STRAGGLER_BUBBLE = Exercise(
    function=straggler_bubble,
    points=3,
    minutes=6,
    difficulty=2,
    task="What fraction of a sampler's slots is empty while a batch is written? Answers differ in length, and the "
    "batch ends with its last token: that is who waits for whom.",
    hints=(
        "Keep one number a slot: until when it is busy. Which slot takes the next answer?",
        "The batch ends when the last slot does. All slots together then had how many places for tokens?",
    ),
    cases=(
        given("two slots, 3 tokens and 1", lengths(3, 1), 2),
        given("the free slot takes the next", lengths(3, 1, 2), 2),
        given("a long answer comes last", lengths(1, 1, 1, 9), 3),
        given("more slots than answers", lengths(4, 4), 3),
        given("one slot never waits", lengths(5, 1, 7), 1),
        drawn("a slot each", lambda d: _batch(d, 9, 9)),
        drawn("few slots", lambda d: _batch(d, 23, 4)),
        extreme("one answer of a million tokens", lengths(*[1] * 50, 10**6), 51),
        at_scale("a thousand answers, 64 slots", lambda d: _batch(d, 1000, 64, 16_384)),
    ),
    misconceptions={
        "busy-fraction": Misconception(
            "This is the fraction of time in which slots write. The bubble is the rest.",
            {"10.7": "bubble = int(lengths.sum()) / (slots * max(busy))"},
        ),
        "the-longest-answer": Misconception(
            "You end the batch with its longest answer. With fewer slots than answers it ends with the slot that is "
            "busy longest, which may have written several.",
            {"10.7": "bubble = 1 - int(lengths.sum()) / (slots * int(lengths.max()))"},
        ),
        "in-turn": Misconception(
            "You deal the answers out in turn, whether a slot is free or not. A free slot waits for nobody: the next "
            "answer goes to the slot that is done first.",
            {
                "tolist()": "for i, length in enumerate(lengths.tolist()):",
                "10.6": "busy[i % slots] += length",
                "heappush()": "pass",
            },
        ),
    },
)


def lengths(*tokens: int):
    return torch.tensor(tokens)


def _queue(d, B, slots, batch, below=40):
    return 1 + d.integers(below, B), slots, batch


ANSWER_AGES = Exercise(
    function=answer_ages,
    points=5,
    minutes=9,
    difficulty=3,
    task="A sampler that never waits writes with weights that are replaced while it writes. How many updates old is "
    "each answer when the trainer learns from it? That is what its speed is bought with.",
    hints=(
        "First the clock: keep one number a slot, until when it is busy. When does each answer begin, and when does it "
        "end?",
        "The version of the weights at a moment is how many whole batches have ended by then. Which moment is it for "
        "the weights that begin an answer?",
        "Sort the answers by their ends. An answer's place in that order says with which batch it is learnt from.",
        "An answer that ends at the very moment another begins has ended: its place is free.",
    ),
    cases=(
        given("two slots, an update for each two", lengths(3, 1, 1, 1), 2, 2),
        given("one slot, an update for each answer: always fresh", lengths(5, 1, 7), 1, 1),
        given("two slots, an update for each answer", lengths(2, 3, 2, 3), 2, 1),
        given("one long answer, others pass it", lengths(9, 1, 1, 1, 1, 1, 1), 2, 2),
        given("all end together", lengths(4, 4, 4, 4, 4, 4, 4, 4), 4, 2),
        drawn("as many slots as an update takes", lambda d: _queue(d, 30, 6, 6)),
        drawn("four times as many", lambda d: _queue(d, 60, 12, 3)),
        extreme("one answer of a million tokens", lengths(10**6, *[1] * 50), 2, 10),
        at_scale("a thousand answers", lambda d: _queue(d, 1000, 64, 16, 16_384)),
    ),
    misconceptions={
        "in-the-order-given": Misconception(
            "You learn from the answers in the order in which they began. A short one that began later ends earlier, "
            "and the trainer takes what has ended.",
            {"10.9": "age = torch.arange(len(end)) // batch - version"},
        ),
        "counted-in-answers": Misconception(
            "You count answers. An update is made of a whole batch of them: the age is counted in updates.",
            {"10.9": "age = order.argsort() - version * batch"},
        ),
        "difference-first": Misconception(
            "You divide the difference by the batch and round down. The versions change at fixed places: round each of "
            "the two counts down, then take the difference.",
            {
                "10.8": "version = torch.searchsorted(end[order], begin, right=True)",
                "10.9": "age = (order.argsort() - version) // batch",
            },
        ),
        "older-weights-at-the-start": Misconception(
            "What ends at the very moment an answer begins, you do not count. It has ended: its place is what the new "
            "answer takes, and its batch may be full.",
            {"10.8": "version = torch.searchsorted(end[order], begin) // batch"},
        ),
        "no-slots": Misconception(
            "You let all answers begin at once. There are as many slots as you are given; the others begin when one is "
            "free.",
            {"heapreplace()": "heapq.heapreplace(free, free[0])"},
        ),
    },
)


TWO = torch.ones(1, 2, dtype=torch.bool)


def _stale(d, B, T):
    return *d.moved(B, T, scale=0.5), d.ragged(B, T)


IMPORTANCE_WEIGHTS = Exercise(
    function=importance_weights,
    points=4,
    minutes=4,
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
