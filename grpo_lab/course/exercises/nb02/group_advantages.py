import torch

from grpo_lab.advantages import group_advantages
from grpo_lab.course.exercise import Exercise, Misconception, at_scale, drawn, extreme, f64, given

EASY_AND_HARD = f64([[11.0, 9.0], [0.0, 2.0]])
# The mean of three of these is not one of them in float32, in whatever order they are added up.
ROUNDED = torch.tensor([[1_000_000.125] * 3])


EXERCISE = Exercise(
    function=group_advantages,
    points=6,
    minutes=25,
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
            ("centred = from_first", "eps, centred = 0, from_first"),
            equation="2.4",
        ),
        "residue-as-spread": Misconception(
            "Right on paper, but in floating point the mean of equal numbers need not be that number. A residue is "
            "left over, and where the spread should be zero it *is* the spread: divided by itself, it pushes equal "
            "answers apart. What could you subtract first, exactly, that the mean would cancel anyhow?",
            ("rewards - rewards[:, :1]", "rewards"),
        ),
        "std-over-batch": Misconception(
            "One standard deviation divides all prompts. Then a prompt whose rewards differ widely sets the scale, and "
            "those that differ a little drown. Whose spread is meant when `scale` is 'group'?",
            ("if scale == 'batch':", "if True:"),
            equation="2.3",
        ),
        "no-centre": Misconception(
            "Nothing is subtracted: every completion of an all-right group is pushed up, and it is not clear against "
            "what. What is the average advantage of a group supposed to be?",
            ("return centred\n", "return rewards\n"),
            ("return centred /", "return rewards /"),
            ("advantages = centred /", "advantages = rewards /"),
            equation="2.2",
        ),
        "group-mixed": Misconception(
            "You compare along the wrong axis: completion i of one prompt against completion i of the others. An easy "
            "prompt is then rewarded for being easy. Which axis holds the answers to the same prompt?",
            ("rewards[:, :1]", "rewards[:1]"),
            ("'P G -> P 1'", "'P G -> 1 G'"),
            ("sum(-1, keepdim=True) / (rewards.shape[1]", "sum(0, keepdim=True) / (rewards.shape[0]"),
            equation="2.2",
        ),
        "population-std": Misconception(
            "You divide by G where the sample standard deviation divides by G - 1. All your advantages come out a "
            "little too large, most of all in small groups. Which argument decides between the two?",
            ("correction=ddof", "correction=0"),
            (" - ddof", ""),
            equation="2.3",
        ),
    },
)
