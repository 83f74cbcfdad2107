"""Names, signatures, settings and weights of reward functions."""

import functools
import math

import pytest
import torch

from grpo_lab.rewards import (
    accuracy_reward,
    contains_reward,
    format_reward,
    judge_reward,
    math_reward,
    reward_names,
)
from grpo_lab.rewards.functions import check_signatures
from grpo_lab.rewards.verifiers import gym_reward
from tests.support.constant_rewards import GOOD, constant_reward, score


def test_a_signature_that_does_not_fit_is_explained():
    with pytest.raises(
        TypeError, match=r"'accuracy_reward' does not fit .* argument: 'answer'; expected .* prompts.*, solution"
    ):
        score(accuracy_reward, columns={"solution": ["4"] * 3})

    def narrow(completions):
        return [0.0] * len(completions)

    words = r"'narrow' does not fit .*'prompts'; expected .* prompts, .*completion_ids, answer, or .* \*\*kwargs"
    with pytest.raises(TypeError, match=words):
        score(narrow)


SETTINGS = [
    (math_reward, "time_limit"), (math_reward, "batch_time_limit"), (contains_reward, "penalty_per_character"),
    (functools.partial(contains_reward, penalty_per_character=0.0), "penalty_per_character"),
    (functools.partial(gym_reward, time_limit=9.0), "batch_time_limit"), (gym_reward, "time_limit"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "column"), SETTINGS)
def test_a_column_with_the_name_of_a_setting_leaves_the_setting_alone(function, column):
    problem = {"generator": "basic_arithmetic", "options": '{"seed": 0, "size": 3}', "index": 0}
    columns = {"answer": ["4"] * 3, "gym": [problem] * 3}
    plain = score(function, columns=columns)[1].tolist()
    check_signatures(function, columns | {column: ["much"] * 3})
    assert score(function, columns=columns | {column: ["much"] * 3})[1].tolist() == plain


@pytest.mark.parametrize(("function", "column"), SETTINGS[:3])
def test_a_reward_names_a_column_that_was_passed_as_its_setting(function, column):
    with pytest.raises(
        TypeError, match=rf"{function.__name__}: {column} is list \['much'\]; expected a number; a column"
    ):
        function([GOOD], answer=["4"], **{column: ["much"]})


def own(completions, limit=10, style=None, **kwargs):
    return [float(limit) if style is None else float(level) for level in style or completions]


def test_a_rewards_setting_and_a_column_are_not_confused():
    with pytest.raises(TypeError, match="reward function 'own' has the setting limit=10, and the data a column 'lim"):
        check_signatures(own, {"limit": [1] * 3})
    assert score(functools.partial(own, limit=5), columns={"limit": [1] * 3})[0].tolist() == [5.0] * 3
    assert score(own, columns={"style": [1, 2, 3]})[0].tolist() == [1.0, 2.0, 3.0], "a column, as in TRL"


def test_reward_names_of_functions_partials_and_objects():
    class ByClass:
        def __call__(self, completions, **kwargs):
            return [0.0] * len(completions)

    cheap = functools.partial(functools.partial(contains_reward, penalty_per_character=0.5), penalty_per_character=0.0)
    functions = [cheap, contains_reward, lambda completions, **kwargs: [], ByClass(), judge_reward(str, name="equal")]
    assert reward_names(functions) == ["contains_reward", "contains_reward_2", "lambda", "ByClass", "equal"]
    functions = [constant_reward([], "f"), constant_reward([], "f_2"), constant_reward([], "f")]
    assert len(set(reward_names(functions))) == 3
    for single in ([], 5, None, "math", [accuracy_reward, "org/model"]):
        with pytest.raises(ValueError, match=r"reward_funcs is \[.*\]; expected at least one reward function"):
            reward_names(single)


def test_weights_are_a_finite_number_for_each_function():
    functions = [format_reward, accuracy_reward]
    assert score(functions, reward_weights=torch.tensor([0.25, 2.0]))[0].tolist() == [2.25, 0.0, 2.25]
    wrong = [
        [1.0],
        [1.0, 2.0, 3.0],
        torch.ones(3),
        *([1.0, weight] for weight in (math.nan, math.inf, 1e39, 10**400, "1", None)),
    ]
    for weights in wrong:
        with pytest.raises(ValueError, match=r"reward_weights is .*; expected one finite number for each of the 2 rew"):
            score(functions, reward_weights=weights)
