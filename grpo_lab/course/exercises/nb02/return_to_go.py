"""The exercise return_to_go: wrong answers, as people write them, then what is said about each."""

import torch

from grpo_lab.advantages import return_to_go
from grpo_lab.course.changed import changed
from grpo_lab.course.exercise import Exercise, Misconception
from grpo_lab.course.exercises._inputs import at_scale, drawn, extreme, f64, given, refused


def discounted_by_position(rewards, gamma):
    powers = gamma ** torch.arange(rewards.shape[-1], dtype=rewards.dtype)
    return (powers * rewards).flip(-1).cumsum(-1).flip(-1)


def quotient_of_powers(rewards, gamma):
    powers = gamma ** torch.arange(rewards.shape[-1], dtype=rewards.dtype)
    return (powers * rewards).flip(-1).cumsum(-1).flip(-1) / powers


EXERCISE = Exercise(
    function=return_to_go,
    notebook="02",
    points=3,
    minutes=12,
    difficulty=2,
    task="Credit every token with the rewards from it onwards, each discounted by its distance.",
    hints=(
        "Eq. (2.13) defines each return by the one after it. So which token is the one to begin with?",
        "A loop over T is fine: walk from the last token to the first, and carry one number along for each completion.",
        "After walking backwards, the returns stand in the order in which you made them.",
    ),
    cases=(
        given("three tokens, discount 1/2", f64([[[1.0, 0.0, 4.0]]]), 0.5),
        given("no discount", f64([[[1.0, 0.0, 4.0]]]), 1.0),
        given("only this token counts", f64([[[1.0, 2.0, 4.0]]]), 0.0),
        given("one token", f64([[[3.0]]]), 0.5),
        given("two completions, a reward at the end", f64([[[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]]]), 0.9),
        drawn("one token each", lambda d: (d.normal(2, 3, 1), 0.9)),
        drawn("two prompts", lambda d: (d.normal(2, 3, 5), 0.9)),
        drawn("as many of everything", lambda d: (d.normal(3, 3, 3), 0.7)),
        extreme("tiny rewards", f64([[[1e-7, 3e-7]]]), 0.5),
        extreme("huge rewards that nearly cancel", f64([[[1e9 + 1, -1e9]]]), 1.0),
        extreme("a tiny gamma, a huge reward", f64([[[0.0, 1e9]]]), 1e-9),
        extreme("a gamma just below 1, a huge reward", f64([[[-1e9, 1e9]]]), 1 - 1e-7),
        at_scale("200 tokens", lambda d: (d.normal(1, 1, 200), 0.99)),
        at_scale("powers of gamma too small for a float", lambda d: (d.normal(1, 1, 120), 0.001)),
        at_scale("float32", lambda d: (d.normal(2, 1, 40).float(), 0.05)),
        refused("a gamma above 1", f64([[[1.0, 2.0]]]), 1.5),
        refused("a gamma just above 1", f64([[[1.0, 2.0]]]), 1 + 1e-6),
        refused("a gamma just below 0", f64([[[1.0, 2.0]]]), -1e-6),
        refused("a gamma without end", f64([[[1.0, 2.0]]]), float("inf")),
        refused("a gamma below 0", f64([[[1.0, 2.0]]]), -0.1),
        refused("a gamma that is NaN", f64([[[1.0, 2.0]]]), float("nan")),
        refused("one group without its batch", f64([[1.0, 2.0]]), 0.5),
        refused("one completion without its group", f64([1.0, 2.0]), 0.5),
        refused("an axis too many", f64([[[[1.0, 2.0]]]]), 0.5),
    ),
    misconceptions=(
        Misconception(
            "gamma-power-off-by-one",
            changed(return_to_go, ("reward + gamma * returns", "gamma * (reward + returns)")),
            "A token's own reward is discounted too: every power of gamma is one too high. At distance zero, by how "
            "much should a reward shrink?",
            "2.13",
        ),
        Misconception(
            "undiscounted",
            changed(return_to_go, ("gamma * returns", "returns")),
            "gamma makes no difference to your result: a reward at the far end counts as much as one right here.",
            "2.13",
        ),
        Misconception(
            "from-the-start",
            changed(return_to_go, (".flip(-1)", ""), ("[::-1]", "")),
            "Your sum runs forwards: a token is credited with what was earned *before* it. Which rewards can a token "
            "still change?",
            "2.13",
        ),
        Misconception(
            "not-turned-back",
            changed(return_to_go, ("[::-1]", "")),
            "The right numbers in the wrong order: the return of the last token stands first. You walked backwards; "
            "what is left to do?",
            "2.13",
        ),
        Misconception(
            "discounted-by-position",
            discounted_by_position,
            "You discount by a token's distance from the *start of the response*. From the second token on everything "
            "is too small. From where does token t measure the distance?",
            "2.13",
        ),
        Misconception(
            "own-reward-left-out",
            changed(return_to_go, ("dim=-1)", "dim=-1) - rewards")),
            "A token does not get its own reward. Look at the last token: what comes after it, and what should its "
            "return be?",
            "2.13",
        ),
        Misconception(
            "one-return-for-all",
            changed(return_to_go, ("backwards[::-1]", "[returns] * len(backwards)")),
            "Every token gets the return of the first one, so later tokens are credited with rewards that were earned "
            "before them. Eq. (2.13) has an index t on both sides.",
            "2.13",
        ),
        Misconception(
            "next-reward-only",
            changed(
                return_to_go,
                ("returns = reward + gamma * returns", "backwards.append(reward + gamma * returns)"),
                ("backwards.append(returns)", "returns = reward"),
            ),
            "You look one token ahead and no further. On the right of Eq. (2.13) stands the next *return*, not the "
            "next reward. What is in it?",
            "2.13",
        ),
        Misconception(
            "quotient-of-powers",
            quotient_of_powers,
            "Right on paper: you multiply with gamma^t, add up, and divide by it again. With a small gamma or a long "
            "response gamma^t is too small for a float, and becomes zero; then you divide zero by zero. Does "
            "Eq. (2.13) need any power of gamma but the first?",
            "2.13",
        ),
        Misconception(
            "averaged",
            changed(return_to_go, ("= reward +", "= (1 - gamma) * reward +")),
            "You mix reward and return with weights that add up to 1, as in a moving average. A return is a sum: "
            "without discount, two rewards of 1 are worth 2.",
            "2.13",
        ),
    ),
)
