"""The exercise return_to_go: wrong answers, as people write them, then what is said about each."""

import torch

from grpo_lab.advantages import return_to_go
from grpo_lab.course.exercise import Exercise, Misconception
from grpo_lab.course.exercises._inputs import at_scale, drawn, f64, given, refused


def _backwards(rewards, step):
    returns, columns = torch.zeros_like(rewards[..., 0]), []
    for reward in rewards.flip(-1).unbind(-1):
        returns = step(reward, returns)
        columns.append(returns)
    return torch.stack(columns[::-1], dim=-1)


def own_reward_discounted(rewards, gamma):
    return _backwards(rewards, lambda reward, later: gamma * (reward + later))


def undiscounted(rewards, gamma):
    return rewards.flip(-1).cumsum(-1).flip(-1)


def from_the_start(rewards, gamma):
    return _backwards(rewards.flip(-1), lambda reward, earlier: reward + gamma * earlier).flip(-1)


def not_turned_back(rewards, gamma):
    return _backwards(rewards, lambda reward, later: reward + gamma * later).flip(-1)


def discounted_by_position(rewards, gamma):
    powers = gamma ** torch.arange(rewards.shape[-1], dtype=rewards.dtype)
    return (powers * rewards).flip(-1).cumsum(-1).flip(-1)


def own_reward_left_out(rewards, gamma):
    return _backwards(rewards, lambda reward, later: reward + gamma * later) - rewards


def one_return_for_all(rewards, gamma):
    powers = gamma ** torch.arange(rewards.shape[-1], dtype=rewards.dtype)
    return (powers * rewards).sum(-1, keepdim=True).expand(rewards.shape)


def next_reward_only(rewards, gamma):
    later = torch.cat([rewards[..., 1:], torch.zeros_like(rewards[..., :1])], dim=-1)
    return rewards + gamma * later


def averaged(rewards, gamma):
    return _backwards(rewards, lambda reward, later: (1 - gamma) * reward + gamma * later)


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
        drawn("two prompts", lambda d: (d.normal(2, 3, 5), 0.9)),
        drawn("as many of everything", lambda d: (d.normal(3, 3, 3), 0.7)),
        at_scale("200 tokens", lambda d: (d.normal(1, 1, 200), 0.99)),
        at_scale("powers of gamma too small for a float", lambda d: (d.normal(1, 1, 120), 0.001)),
        at_scale("float32", lambda d: (d.normal(2, 1, 40).float(), 0.05)),
        refused("a gamma above 1", f64([[[1.0, 2.0]]]), 1.5),
        refused("a gamma below 0", f64([[[1.0, 2.0]]]), -0.1),
        refused("one group without its batch", f64([[1.0, 2.0]]), 0.5),
    ),
    misconceptions=(
        Misconception(
            "gamma-power-off-by-one",
            own_reward_discounted,
            "A token's own reward is discounted too: every power of gamma is one too high. At distance zero, by how "
            "much should a reward shrink?",
            "2.13",
        ),
        Misconception(
            "undiscounted",
            undiscounted,
            "gamma makes no difference to your result: a reward at the far end counts as much as one right here.",
            "2.13",
        ),
        Misconception(
            "from-the-start",
            from_the_start,
            "Your sum runs forwards: a token is credited with what was earned *before* it. Which rewards can a token "
            "still change?",
            "2.13",
        ),
        Misconception(
            "not-turned-back",
            not_turned_back,
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
            own_reward_left_out,
            "A token does not get its own reward. Look at the last token: what comes after it, and what should its "
            "return be?",
            "2.13",
        ),
        Misconception(
            "one-return-for-all",
            one_return_for_all,
            "Every token gets the return of the first one, so later tokens are credited with rewards that were earned "
            "before them. Eq. (2.13) has an index t on both sides.",
            "2.13",
        ),
        Misconception(
            "next-reward-only",
            next_reward_only,
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
            averaged,
            "You mix reward and return with weights that add up to 1, as in a moving average. A return is a sum: "
            "without discount, two rewards of 1 are worth 2.",
            "2.13",
        ),
    ),
)
