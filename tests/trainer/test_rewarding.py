"""The rewards of a rollout: what reward functions get, and the reward of an environment as one more function."""

import math
from dataclasses import replace

import pytest
import torch

from grpo_lab.rewards.scoring import RewardLog
from grpo_lab.rollout.rollout import Episode
from grpo_lab.trainer.rewarding import all_reward_functions, reward_rollout
from tests.support.small_policy import ROWS, make_policy, ragged_experience, train_small


class Game:
    """An environment that gives a reward; its class is the name of the reward function."""

    def get_reward(self) -> float:
        raise AssertionError("the sampler has called it already: the reward is in the episode")


def rollout_of_two_prompts(episodes=None):
    """Return a rollout of two completions for each of two prompts, of 2, 1, 3 and 1 tokens."""
    rollout = ragged_experience([2, 1, 3, 1], columns=3).rollout
    assert rollout.group_of_row.tolist() == [0, 0, 1, 1]
    return replace(rollout, episodes=episodes)


TWO_ROWS = [{"prompt": "a", "answer": "1"}, {"prompt": [{"role": "user", "content": "b"}], "answer": "2"}]


def by_answer(completions, answer, **kwargs):
    return [float(value) for value in answer]


def by_length(completions, completion_ids, **kwargs):
    return [None if len(ids) == 1 else float(len(ids)) for ids in completion_ids]


def test_the_total_is_the_weighted_sum_and_a_reward_that_does_not_apply_is_nan():
    rewards = reward_rollout(rollout_of_two_prompts(), TWO_ROWS, [by_answer, by_length], [1.0, 0.5])
    assert rewards.names == ["by_answer", "by_length"]
    assert rewards.total.tolist() == [2.0, 1.0, 3.5, 2.0]
    expected = torch.tensor([[1.0, 2.0], [1.0, math.nan], [2.0, 3.0], [2.0, math.nan]])
    torch.testing.assert_close(rewards.rewards_per_func, expected, rtol=0, atol=0, equal_nan=True)


def test_the_reward_of_an_environment_is_one_more_function_of_weight_one():
    episodes = [Episode(environment=Game(), reward=reward) for reward in (10.0, 20.0, None, 40.0)]
    rollout = rollout_of_two_prompts(episodes)
    rewards = reward_rollout(rollout, TWO_ROWS, by_answer, [0.5])
    assert rewards.names == ["by_answer", "Game"]
    assert rewards.total.tolist() == [10.5, 20.5, 1.0, 41.0]
    with pytest.warns(RuntimeWarning, match=r"every reward function \(Game\) returned None for 1 of 4 completions"):
        alone = reward_rollout(rollout, TWO_ROWS, None)
    assert alone.names == ["Game"]
    torch.testing.assert_close(alone.total, torch.tensor([10.0, 20.0, math.nan, 40.0]), equal_nan=True)


def test_the_functions_are_those_of_the_run_and_that_of_an_environment_with_a_reward():
    with_reward = [Episode(environment=Game(), reward=1.0)] * 4
    without_reward = [Episode(environment=object())] * 4
    for episodes, names in ((None, []), ([], []), (without_reward, []), (with_reward, ["Game"])):
        functions = all_reward_functions([by_answer, by_length], rollout_of_two_prompts(episodes))
        assert [function.__name__ for function in functions] == ["by_answer", "by_length", *names]
    assert all_reward_functions(None, rollout_of_two_prompts()) == []


@pytest.mark.parametrize("has_environment", [False, True])
def test_prompts_and_messages_of_the_episodes_take_the_place_of_those_of_the_rows(has_environment):
    calls = []

    def note(prompts, completions, completion_ids, **columns):
        calls.append((prompts, completions, completion_ids, columns))
        return [0.0] * len(completions)

    messages = [{"role": "assistant", "content": "said"}, {"role": "tool", "content": "4"}]
    games = [Game() for _ in range(4)]
    episodes = [Episode(environment=game, messages=messages, prompt=f"reset {row}") for row, game in enumerate(games)]
    episodes[3] = replace(episodes[3], prompt=None)
    rollout = rollout_of_two_prompts(episodes if has_environment else None)
    reward_rollout(rollout, TWO_ROWS, note)
    ((prompts, completions, completion_ids, columns),) = calls
    assert completion_ids == [rollout.completion_ids[row, : (2, 1, 3, 1)[row]].tolist() for row in range(4)]
    assert columns["answer"] == ["1", "1", "2", "2"]
    if has_environment:
        assert prompts == ["reset 0", "reset 1", "reset 2", TWO_ROWS[1]["prompt"]]
        assert completions == [messages] * 4
        assert all(passed is game for passed, game in zip(columns["environments"], games, strict=True))
    else:
        assert prompts == ["a", "a", *[TWO_ROWS[1]["prompt"]] * 2]
        assert completions == ["row 0", "row 1", *([{"role": "assistant", "content": f"row {row}"}] for row in (2, 3))]
        assert "environments" not in columns


def test_reward_rollout_collects_logged_metrics():
    def logs(completions, log_metric, **kwargs):
        log_metric("count", len(completions))
        return [0.0] * len(completions)

    log = RewardLog()
    reward_rollout(rollout_of_two_prompts(), TWO_ROWS, logs, reward_log=log)
    assert log.metrics() == {"count": 4.0}


def test_reward_functions_get_everything_in_the_form_of_the_prompt():
    calls = []

    def note(prompts, completions, completion_ids, answer, **kwargs):
        calls.append((prompts, completions, completion_ids, answer, kwargs))
        return [0.0] * len(completions)

    train_small(reward=note, max_steps=2)
    answers = {str(row["prompt"]): row["answer"] for row in ROWS}
    tokenizer = make_policy()[1]
    for prompts, completions, completion_ids, answer, keywords in calls:
        assert {len(x) for x in (prompts, completions, completion_ids, answer)} == {8}
        assert keywords.keys() == {"trainer_state", "log_metric", "log_extra"}, "as TRL's trainer calls them"
        for prompt, completion, ids, expected in zip(prompts, completions, completion_ids, answer, strict=True):
            text = completion if isinstance(prompt, str) else completion[0]["content"]
            assert isinstance(prompt, str) or [message["role"] for message in completion] == ["assistant"]
            assert text == tokenizer.decode(ids, skip_special_tokens=True)
            assert 1 <= len(ids) <= 5
            assert expected == answers[str(prompt)]
        assert prompts == [prompts[0]] * 4 + [prompts[4]] * 4
    assert {type(prompt) for prompts, *_ in calls for prompt in prompts} == {str, list}
