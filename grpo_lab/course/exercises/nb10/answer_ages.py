import torch

from grpo_lab.course.exercise import Exercise, Misconception, at_scale, drawn, extreme, given
from grpo_lab.toys.scale import answer_ages


def lengths(*tokens: int):
    return torch.tensor(tokens)


def _queue(d, B, slots, batch, below=40):
    return 1 + d.integers(below, B), slots, batch


EXERCISE = Exercise(
    function=answer_ages,
    points=5,
    minutes=30,
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
