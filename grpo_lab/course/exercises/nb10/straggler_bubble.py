import torch

from grpo_lab.course.exercise import Exercise, Misconception, at_scale, drawn, extreme, given
from grpo_lab.toys.scale import straggler_bubble


def lengths(*tokens: int):
    return torch.tensor(tokens)


def _batch(d, B, slots, below=40):
    return 1 + d.integers(below, B), slots


EXERCISE = Exercise(
    function=straggler_bubble,
    points=3,
    minutes=20,
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
