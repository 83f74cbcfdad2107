"""The exercise best_of_group: wrong answers, as people write them, then what is said about each."""

import torch

from grpo_lab.advantages import best_of_group
from grpo_lab.course.exercise import Exercise, Misconception
from grpo_lab.course.exercises._inputs import at_scale, drawn, extreme, f64, given, refused

NAN, INF = float("nan"), float("inf")


def first_of_ties(rewards):
    best = torch.zeros_like(rewards, dtype=torch.bool).scatter(-1, rewards.argmax(-1, keepdim=True), True)
    return torch.where(best & (rewards > rewards.amin(-1, keepdim=True)), rewards, 0)


def equal_group_kept(rewards):
    return torch.where(rewards == rewards.amax(-1, keepdim=True), rewards, 0)


def best_of_batch(rewards):
    return torch.where((rewards == rewards.max()) & (rewards.max() > rewards.min()), rewards, 0)


def ones(rewards):
    best, worst = rewards.amax(-1, keepdim=True), rewards.amin(-1, keepdim=True)
    return ((rewards == best) & (best > worst)).to(rewards.dtype)


def all_but_the_worst(rewards):
    return torch.where(rewards > rewards.amin(-1, keepdim=True), rewards, 0)


def mixed(rewards):
    best, worst = rewards.amax(0), rewards.amin(0)
    return torch.where((rewards == best) & (best > worst), rewards, 0)


def above_mean(rewards):
    return torch.where(rewards > rewards.mean(-1, keepdim=True), rewards, 0)


def centred(rewards):
    best, worst = rewards.amax(-1, keepdim=True), rewards.amin(-1, keepdim=True)
    return torch.where((rewards == best) & (best > worst), rewards - rewards.mean(-1, keepdim=True), 0)


EXERCISE = Exercise(
    function=best_of_group,
    notebook="02",
    points=3,
    minutes=10,
    difficulty=1,
    task="Keep the reward of the best completion of each group and drop the others: rejection sampling, written as "
    "weights.",
    hints=(
        "Two conditions stand in Eq. (2.6). What does each of them rule out?",
        "Compare the rewards with their row's largest and smallest; `amax` and `amin` with `keepdim` make them fit. "
        "What happens to ties then?",
    ),
    cases=(
        given("two good ones and a bad one", f64([[0.0, 3.0, 2.0]])),
        given("a tie at the top", f64([[2.0, 2.0, 1.0]])),
        given("equal rewards", f64([[1.0, 1.0]])),
        given("negative rewards", f64([[-1.0, -3.0, -2.0]])),
        given("an easy prompt and a hard one", f64([[5.0, 6.0, 4.0], [1.0, 0.0, 2.0]])),
        given("one completion", f64([[3.0]])),
        drawn("as many prompts as completions, ties", lambda d: (d.integers(3, 4, 4).double(),)),
        drawn("larger groups", lambda d: (d.normal(3, 6),)),
        extreme("best by a hair", f64([[3.0, 3.0000001], [-1.0, -1.0000001]])),
        extreme("tiny and huge rewards", f64([[1e-300, 0.0], [1e300, -1e300]])),
        at_scale("300 completions", lambda d: (d.normal(7, 300) - 5,)),
        at_scale("float32, many ties", lambda d: (d.integers(4, 30, 5).float() - 2,)),
        refused("one group without its batch", f64([1.0, 0.0])),
        refused("a reward that is NaN", f64([[1.0, 0.0], [NAN, 1.0]])),
        refused("a reward without end", f64([[1.0, 0.0], [1.0, INF]])),
    ),
    misconceptions=(
        Misconception(
            "first-of-ties",
            first_of_ties,
            "Of several best completions you keep the first. They earned the same, and which of them stands first is "
            "chance. What does Eq. (2.6) say about ties?",
            "2.6",
        ),
        Misconception(
            "equal-group-kept",
            equal_group_kept,
            "In a group of equal rewards everyone is the best, so you push all of them up, although none was better "
            "than the others. Which part of Eq. (2.6) is there to prevent that?",
            "2.6",
        ),
        Misconception(
            "best-of-batch",
            best_of_batch,
            "You look for the best of the whole batch. Only the easiest prompt then learns anything. Among whom is "
            "the best to be found?",
            "2.6",
        ),
        Misconception(
            "one-not-reward",
            ones,
            "You mark the best with a 1. That is a mask; the weight is what the best earned.",
            "2.6",
        ),
        Misconception(
            "all-but-the-worst",
            all_but_the_worst,
            "You keep everything above the worst. How many distinct rewards does a group of three have, and how many "
            "of them are the best?",
            "2.6",
        ),
        Misconception(
            "above-the-mean",
            above_mean,
            "You keep whatever lies above the mean of its group. Often that is only the best, but look at a group "
            "with two good answers of different reward.",
            "2.6",
        ),
        Misconception(
            "group-mixed",
            mixed,
            "You take the maximum down the columns, so answers to different prompts compete. Which axis holds the "
            "answers to one prompt?",
            "2.6",
        ),
        Misconception(
            "best-centred",
            centred,
            "You subtract the mean of the group. A baseline is a good idea, but this weight is the plain reward of the "
            "best, so that notebook 03 can compare the two ideas.",
            "2.6",
        ),
    ),
)
