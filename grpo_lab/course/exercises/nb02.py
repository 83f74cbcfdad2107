"""The exercises of notebook 02."""

import torch

from grpo_lab.advantages import group_advantages, rloo_advantages
from grpo_lab.course.exercise import Exercise, Misconception, at_scale, drawn, extreme, f64, given

EASY_AND_HARD = f64([[11.0, 9.0], [0.0, 2.0]])
# The mean of three of these is not one of them in float32, in whatever order they are added up.
ROUNDED = torch.tensor([[1_000_000.125] * 3])


GROUP_ADVANTAGES = Exercise(
    function=group_advantages,
    points=6,
    minutes=8,
    difficulty=2,
    task="Score each completion against the others of its own prompt. This is the G of GRPO, and takes the place of a "
    "second network.",
    hints=(
        "A row of the rewards holds the answers to one prompt. Along which axis do they compete, and what does "
        "`keepdim` do for you there?",
        "Four equations, four lines. The first looks superfluous: try seven rewards of 0.1 in float32 without it.",
        "Read `scale` last: the centred rewards are the same for all three. Only what divides them differs, and with "
        "'none' nothing does.",
        "Which numbers does `std` see: those of one row, or all of them? And does its `correction` follow `ddof`?",
    ),
    cases=(
        given("one right, one wrong, centred only", f64([[1.0, 0.0]]), scale="none"),
        given("by hand: 0 and 2, population, eps 1", f64([[0.0, 2.0]]), ddof=0, eps=1.0),
        given("equal rewards", f64([[1.0, 1.0, 1.0]])),
        given("an easy prompt and a hard one", EASY_AND_HARD),
        given("an easy prompt and a hard one, one spread for both", EASY_AND_HARD, scale="batch"),
        given("one right of sixteen", f64([[1.0] + [0.0] * 15])),
        drawn("as many prompts as completions", lambda d: (d.normal(3, 3),)),
        drawn("one spread for the batch, population", lambda d: (5 + d.normal(3, 2),), scale="batch", ddof=0),
        drawn("centred only, larger", lambda d: (d.normal(2, 6),), scale="none"),
        extreme("equal rewards in float32, far from zero", ROUNDED),
        extreme("equal rewards in float32, centred only", ROUNDED, scale="none"),
        extreme("equal rewards in float32, one spread", torch.cat([ROUNDED, -ROUNDED]), scale="batch", ddof=0),
        at_scale("a million from zero", lambda d: (1e6 + d.normal(3, 40),), eps=1e-6),
    ),
    misconceptions={
        "std-no-eps": Misconception(
            "There is no epsilon in your quotient, so a group of equal rewards gives 0 / 0, which is NaN, and one NaN "
            "in a batch destroys the weights. What should a group in which nobody was better teach?",
            {"2.2": "eps, centred = 0, from_first - reduce(from_first, 'P G -> P 1', 'mean')"},
            equation="2.4",
        ),
        "residue-as-spread": Misconception(
            "Right on paper, but in floating point the mean of equal numbers need not be that number. A residue is "
            "left over, and where the spread should be zero it *is* the spread: divided by itself, it pushes equal "
            "answers apart. What could you subtract first, exactly, that the mean would cancel anyhow?",
            {"2.1": "from_first = rewards"},
        ),
        "std-over-batch": Misconception(
            "One standard deviation divides all prompts. Then a prompt whose rewards differ widely sets the scale, and "
            "those that differ a little drown. Whose spread is meant when `scale` is 'group'?",
            {"2.3": "std = (rewards - rewards[0, 0]).std(correction=ddof)"},
        ),
        "no-centre": Misconception(
            "Nothing is subtracted: every completion of an all-right group is pushed up, and it is not clear against "
            "what. What is the average advantage of a group supposed to be?",
            {"2.2": "centred = rewards", "2.3": "std = from_first.std(-1, keepdim=True, correction=ddof)"},
            equation="2.2",
        ),
        "group-mixed": Misconception(
            "You compare along the wrong axis: completion i of one prompt against completion i of the others. An easy "
            "prompt is then rewarded for being easy. Which axis holds the answers to the same prompt?",
            {
                "2.1": "from_first = rewards - rewards[:1]",
                "2.2": "centred = from_first - reduce(from_first, 'P G -> 1 G', 'mean')",
                "2.3": "std = (centred.square().sum(0, keepdim=True) / (rewards.shape[0] - ddof)).sqrt()",
            },
            equation="2.2",
        ),
        "ddof-ignored": Misconception(
            "`ddof` makes no difference to your result: you always divide by G - 1. Whoever asks for ddof=0 wants the "
            "spread of these rewards themselves. Which argument of `std` is that?",
            {
                "std()": "std = (rewards - rewards[0, 0]).std()",
                "2.3": "std = (centred.square().sum(-1, keepdim=True) / (rewards.shape[1] - 1)).sqrt()",
            },
        ),
        "spread-of-the-centred": Misconception(
            "With 'batch' you take the standard deviation of the *centred* rewards. What divides them there is the "
            "spread of the rewards themselves: that prompts differ in difficulty is a part of it.",
            {"std()": "std = centred.std(correction=ddof)"},
            equation="2.3",
        ),
        "population-std": Misconception(
            "You divide by G where the sample standard deviation divides by G - 1. All your advantages come out a "
            "little too large, most of all in small groups. Which argument decides between the two?",
            {
                "std()": "std = (rewards - rewards[0, 0]).std(correction=0)",
                "2.3": "std = (centred.square().sum(-1, keepdim=True) / rewards.shape[1]).sqrt()",
            },
        ),
    },
)


RLOO_ADVANTAGES = Exercise(
    function=rloo_advantages,
    points=3,
    minutes=3,
    difficulty=1,
    task="Compare each completion with the mean of the others. Since that baseline never sees the reward it is "
    "subtracted from, the estimate is unbiased.",
    hints=(
        "For each completion: how many others are there, and what do they earn together?",
        "You don't need a loop. The sum over the others is the sum over all, less one of them.",
    ),
    cases=(
        given("one right, one wrong", f64([[1.0, 0.0]])),
        given("one right of three", f64([[3.0, 0.0, 0.0]])),
        given("equal rewards", f64([[2.0, 2.0, 2.0]])),
        given("an easy prompt and a hard one", f64([[11.0, 9.0], [0.0, 2.0]])),
        drawn("as many prompts as completions", lambda d: (d.normal(3, 3),)),
        at_scale("a million from zero", lambda d: (1e6 + d.normal(3, 40),)),
    ),
    misconceptions={
        "leave-one-out-includes-itself": Misconception(
            "You subtract the mean of the whole group, and the completion's own reward is part of it: each is compared "
            "with itself a little. With two completions everything comes out half as large. Who are 'the others'?",
            {"2.5": "advantages = r - r.mean(-1, keepdim=True)"},
        ),
        "others-divided-by-all": Misconception(
            "You add up the others, but divide by the size of the whole group, so your baseline is too small. Equal "
            "rewards should give zero. How many others are there?",
            {"2.5": "advantages = rewards - (rewards.sum(-1, keepdim=True) - rewards) / rewards.shape[1]"},
        ),
        "no-centre": Misconception(
            "These are the rewards themselves. If all completions of a prompt are right, all are pushed up, and none "
            "was better than the others. What is missing?",
            {"2.5": "advantages = rewards"},
        ),
        "divided-by-std": Misconception(
            "You divide by the standard deviation as well. That is a habit of GRPO; leave-one-out does without, and "
            "the own reward, which sits in that spread, would make it biased again.",
            {
                "2.5": "advantages = (r - (r.sum(-1, keepdim=True) - r) / (r.shape[1] - 1)) / (r.std(-1, "
                "keepdim=True) + 0.0001)"
            },
        ),
    },
)
