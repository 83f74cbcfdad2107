"""The exercise group_advantages: wrong answers, as people write them, then what is said about each."""

import torch

from grpo_lab.advantages import group_advantages
from grpo_lab.course.changed import changed
from grpo_lab.course.exercise import Exercise, Misconception
from grpo_lab.course.exercises._inputs import at_scale, drawn, extreme, f64, given, refused

EASY_AND_HARD = f64([[11.0, 9.0], [0.0, 2.0]])
NAN, INF = float("nan"), float("inf")
# The mean of three of these is not one of them in float32, in whatever order they are added up.
ROUNDED = torch.tensor([[1_000_000.125] * 3])


def reshaped(rewards, scale="group", ddof=1, eps=1e-4):
    table = rewards.reshape(rewards.shape[1], rewards.shape[0])
    return group_advantages(table.mT, scale, ddof, eps).mT.reshape(rewards.shape)


EXERCISE = Exercise(
    function=group_advantages,
    notebook="02",
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
        given("three rewards, one apart", f64([[3.0, 1.0, 2.0]])),
        given("equal rewards", f64([[1.0, 1.0, 1.0]])),
        given("an easy prompt and a hard one", EASY_AND_HARD),
        given("an easy prompt and a hard one, one spread for both", EASY_AND_HARD, scale="batch"),
        given("all right beside one of three", f64([[1.0, 1.0, 1.0], [0.0, 1.0, 0.0]])),
        drawn("as many prompts as completions", lambda d: (d.normal(3, 3),)),
        drawn("population standard deviation", lambda d: (d.normal(2, 5),), ddof=0),
        drawn("prompts of unlike spread", lambda d: (d.normal(3, 4) * f64([[0.1], [1.0], [10.0]]),)),
        drawn(
            "one spread for the batch, population", lambda d: (5 + d.normal(3, 2, scale=3.0),), scale="batch", ddof=0
        ),
        *(
            drawn(f"scale {scale}, ddof {ddof}", lambda d: (3 + d.normal(4, 2),), scale=scale, ddof=ddof)
            for scale in ("group", "batch", "none")
            for ddof in (0, 1)
        ),
        drawn("one prompt, one spread", lambda d: (d.normal(1, 4),), scale="batch", eps=0.5),
        drawn("eps 2", lambda d: (d.normal(3, 4),), eps=2.0),
        drawn("no spread at all, larger", lambda d: (d.normal(2, 6),), scale="none"),
        extreme("equal rewards in float32, far from zero", ROUNDED, scale="none"),
        extreme("equal rewards in float32, their own spread", ROUNDED),
        extreme("equal rewards in float32, one spread", torch.cat([ROUNDED, -ROUNDED]), scale="batch", ddof=0),
        extreme("equal rewards in float32, one spread of zero", torch.cat([ROUNDED, ROUNDED]), scale="batch"),
        extreme("one completion, centred only", f64([[3.0], [5.0]]), scale="none"),
        extreme("one reward in all, centred only", f64([[3.0]]), scale="none"),
        extreme("one completion, population", f64([[3.0], [5.0]]), ddof=0),
        extreme("one completion of each of two prompts, one spread", f64([[3.0], [5.0]]), scale="batch"),
        extreme("two that differ by a hair, a small eps", f64([[0.0, 1e-8]]), eps=1e-8),
        extreme("two that differ by less than a hair", f64([[0.0, 1e-12]]), eps=1e-12),
        extreme("tiny rewards, centred only", f64([[1e-7, 3e-7, -4e-7]]), scale="none"),
        extreme("tiny rewards, a huge eps", f64([[1e-3, 3e-3]]), eps=1e4),
        extreme("huge rewards, centred only", f64([[1e6, -1e6, 3.0]]), scale="none"),
        extreme("one of 300 is right", torch.eye(2, 300, dtype=torch.float64)),
        at_scale("300 completions", lambda d: (d.normal(7, 300),)),
        at_scale("300 completions, one spread", lambda d: (d.normal(7, 300),), scale="batch"),
        at_scale("a million from zero", lambda d: (1e6 + d.normal(3, 40),), eps=1e-6),
        at_scale("a spread as small as eps", lambda d: (d.normal(4, 9, scale=1e-4),)),
        at_scale("float32", lambda d: (d.normal(5, 40).float(),), ddof=0),
        refused("a scale that there is not", f64([[1.0, 0.0]]), scale="prompt"),
        refused("an empty scale", f64([[1.0, 0.0]]), scale=""),
        refused("a scale in capitals", f64([[1.0, 0.0]]), scale="GROUP"),
        refused("a scale with a blank", f64([[1.0, 0.0]]), scale=" none"),
        refused("a scale that begins as one that there is", f64([[1.0, 0.0]]), scale="batches"),
        refused("ddof -1", f64([[1.0, 0.0, 2.0]]), ddof=-1),
        refused("half a ddof", f64([[1.0, 0.0, 2.0]]), ddof=0.5),
        refused("ddof 2, one spread", f64([[1.0, 0.0, 2.0]]), scale="batch", ddof=2),
        refused("ddof 2, centred only", f64([[1.0, 0.0, 2.0]]), scale="none", ddof=2),
        refused("a standard deviation with G - 2", f64([[1.0, 0.0, 2.0]]), ddof=2),
        refused("eps 0", f64([[1.0, 0.0]]), eps=0.0),
        refused("an eps below 0", f64([[1.0, 0.0]]), eps=-1e-4),
        refused("an eps that is NaN", f64([[1.0, 0.0]]), eps=NAN),
        refused("eps 0, centred only", f64([[1.0, 0.0]]), scale="none", eps=0.0),
        refused("one group without its batch, own spread", f64([1.0, 0.0])),
        refused("one group without its batch", f64([1.0, 0.0]), scale="none"),
        refused("an axis too many", f64([[[1.0, 0.0], [0.0, 1.0]]])),
        refused("a reward that is NaN", f64([[1.0, 0.0], [NAN, 1.0]])),
        refused("a reward that is NaN, one spread", f64([[1.0, 0.0], [1.0, NAN]]), scale="batch"),
        refused("a penalty without end", f64([[1.0, 0.0], [-INF, 1.0]])),
        refused("a reward without end", f64([[1.0, INF]]), scale="none"),
        refused("one completion has no spread", f64([[1.0], [2.0]])),
        refused("one reward has no spread", f64([[1.0]]), scale="batch"),
    ),
    misconceptions=(
        Misconception(
            "std-no-eps",
            changed(group_advantages, ("from_first = rewards - rewards[:, :1]", "from_first, eps = rewards, 0")),
            "There is no epsilon in your quotient. In a group of equal rewards that makes 0 / 0; or worse, rounding "
            "leaves a speck over, and the speck is divided by itself. What should a group in which nobody was better "
            "teach?",
            "2.4",
        ),
        Misconception(
            "std-no-eps-from-first",
            changed(group_advantages, ("centred = from_first", "eps, centred = 0, from_first")),
            "There is no epsilon in your quotient, so a group of equal rewards gives 0 / 0, which is NaN, and one NaN "
            "in a batch destroys the weights. What should a group in which nobody was better teach?",
            "2.4",
        ),
        Misconception(
            "residue-as-spread",
            changed(group_advantages, ("rewards - rewards[:, :1]", "rewards")),
            "Right on paper, but in floating point the mean of equal numbers need not be that number. A residue is "
            "left over, and where the spread should be zero it *is* the spread: divided by itself, it pushes equal "
            "answers apart. What could you subtract first, exactly, that the mean would cancel anyhow?",
            "2.1",
        ),
        Misconception(
            "std-over-batch",
            changed(group_advantages, ("scale == 'batch'", "True")),
            "One standard deviation divides all prompts. Then a prompt whose rewards differ widely sets the scale, and "
            "those that differ a little drown. Whose spread is meant when `scale` is 'group'?",
            "2.3",
        ),
        Misconception(
            "compared-with-everybody",
            changed(
                group_advantages,
                ("from_first - reduce(from_first, 'P G -> P 1', 'mean')", "rewards - rewards.mean()"),
                ("scale == 'batch'", "True"),
            ),
            "Mean and standard deviation are those of the whole batch. An answer to an easy prompt is then good "
            "because the prompt was easy. Against which answers is it fair to compare one?",
            "2.2",
        ),
        Misconception(
            "scale-ignored",
            changed(group_advantages, ("scale == 'none'", "False"), ("scale == 'batch'", "False")),
            "`scale` makes no difference to your result: you always divide by the group's own standard deviation. "
            "What do 'batch' and 'none' ask for?",
            "2.4",
        ),
        Misconception(
            "no-centre",
            changed(
                group_advantages,
                ("return centred\n", "return rewards\n"),
                ("return centred /", "return rewards /"),
                ("advantages = centred /", "advantages = rewards /"),
            ),
            "Nothing is subtracted: every completion of an all-right group is pushed up, and it is not clear against "
            "what. What is the average advantage of a group supposed to be?",
            "2.2",
        ),
        Misconception(
            "group-mixed",
            changed(
                group_advantages,
                ("rewards[:, :1]", "rewards[:1]"),
                ("'P G -> P 1'", "'P G -> 1 G'"),
                ("sum(-1, keepdim=True) / (rewards.shape[1]", "sum(0, keepdim=True) / (rewards.shape[0]"),
            ),
            "You compare along the wrong axis: completion i of one prompt against completion i of the others. An easy "
            "prompt is then rewarded for being easy. Which axis holds the answers to the same prompt?",
            "2.2",
        ),
        Misconception(
            "group-mixed-reshaped",
            reshaped,
            "You read the rewards as a table of G rows. The numbers all fit and nothing crashes, but a column then "
            "holds answers to different prompts. Write down where each of the P*G numbers lands, for P = 2 and G = 3.",
            "2.2",
        ),
        Misconception(
            "population-std",
            changed(group_advantages, ("correction=ddof", "correction=0"), (" - ddof", "")),
            "You divide by G where the sample standard deviation divides by G - 1. All your advantages come out a "
            "little too large, most of all in small groups. Which argument decides between the two?",
            "2.3",
        ),
        Misconception(
            "ddof-ignored",
            changed(group_advantages, ("correction=ddof", "correction=1"), (" - ddof", " - 1")),
            "Your standard deviation is the sample one, whatever `ddof` says. open-instruct and TRL differ in just "
            "this, so callers will want the choice.",
            "2.3",
        ),
        Misconception(
            "variance-not-std",
            changed(group_advantages, (".std(", ".var("), (".sqrt()", "")),
            "You divide by the variance. Rewards measured in cents instead of euros would then give other advantages: "
            "which of the two, variance or standard deviation, has the unit of a reward?",
            "2.3",
        ),
        Misconception(
            "eps-inside-the-root",
            changed(
                group_advantages,
                ("return centred / (std + eps)", "return centred / (std ** 2 + eps).sqrt()"),
                ("advantages = centred / (std + eps)", "advantages = centred / (std ** 2 + eps).sqrt()"),
            ),
            "Your epsilon stands inside the root, where it counts as much as its own root: 0.0001 becomes 0.01. "
            "Where does Eq. (2.4) put it?",
            "2.4",
        ),
        Misconception(
            "batch-mean",
            changed(group_advantages, ("return centred /", "return (rewards - rewards.mean()) /")),
            "With `scale` 'batch' you subtract the mean of the batch as well, so hard prompts are punished for being "
            "hard. What does the batch lend: its mean, its spread, or both?",
            "2.4",
        ),
        Misconception(
            "batch-of-centred",
            changed(group_advantages, ("(rewards - rewards[0, 0]).std", "centred.std")),
            "With `scale` 'batch' you take the spread of the *centred* rewards. The docstring asks for that of the "
            "rewards themselves, in which the distance between easy and hard prompts still counts.",
            "2.4",
        ),
    ),
)
