"""Reward functions and their scoring, for the tests of how they are called."""

from typing import Any

from grpo_lab.rewards import score_completions
from grpo_lab.rewards.scoring import Rewards

GOOD, BAD = "<think>a</think><answer>4</answer>", "4"


def constant_reward(values: Any, name: str = "constant"):
    """Return a reward function of this name that returns these values."""

    def reward(completions, **kwargs):
        return values

    reward.__name__ = name
    return reward


def score(reward_funcs, completions=(GOOD, BAD, GOOD), columns=None, reward_weights=None) -> Rewards:
    """Score completions of one prompt, whose expected answer is "4" unless there are other columns."""
    rows = len(completions)
    ids = [[1, 2]] * rows
    columns = {"answer": ["4"] * rows} if columns is None else columns
    return score_completions(reward_funcs, ["q"] * rows, list(completions), ids, columns, reward_weights)
