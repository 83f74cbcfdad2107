"""Advantages of turns in a run, computed from the rewards and states of the environment by the table."""

import math
from dataclasses import replace

import pytest
import torch

from grpo_lab.advantages import gigpo_advantages, turn_advantages
from grpo_lab.base.checks import InputError
from grpo_lab.config.settings import SamplingParams
from grpo_lab.rollout import Rollout
from grpo_lab.rollout.environments.text_environment import TextEnvironment
from grpo_lab.rollout.environments.tools import ToolEnvironment
from grpo_lab.rollout.rollout import Episode
from grpo_lab.toys.guess import GuessPolicy, GuessWorld, policy_mask, sample_episodes
from grpo_lab.toys.guess.world import episode_rewards, turn_states
from grpo_lab.trainer import collect, train
from grpo_lab.trainer.collecting import compute_advantages, make_experience
from grpo_lab.trainer.turn_credit import rewards_of_turns, state_ids, token_advantages
from tests.support.resuming import assert_same_end
from tests.support.small_policy import ROWS as LETTER_ROWS
from tests.support.small_policy import letter_reward, make_config, make_policy
from tests.support.text_episodes import STOP_STRINGS, reply_by_length
from tests.support.tool_policy import (
    END,
    ROWS,
    Adder,
    call,
    length_reward,
    make_tool_policy,
    sample_scripts,
    tool_config,
)

BY_TURN = ["turn", "state", "gigpo"]
WORLD = GuessWorld(5, 3)


class Counted(Adder):
    """An environment that adds, has `get_state`, and counts the calls of `get_reward`."""

    def reset(self, answer: str, **row) -> str:
        self.reward_calls = 0
        return super().reset(answer, **row)

    def get_state(self) -> tuple:
        return (self.start, self.total)

    def get_reward(self) -> float:
        self.reward_calls += 1
        return super().get_reward()


def guess_tokens(secrets: list[int]) -> torch.Tensor:
    return sample_episodes(GuessPolicy(WORLD, seed=1), torch.tensor(secrets), torch.Generator().manual_seed(0))


def guess_rollout(tokens) -> Rollout:
    """Convert episodes of the toy to a rollout; its rewards and states take the place of an environment's."""
    B, T = tokens.shape
    mask, zeros = tokens != 0, torch.zeros(B, T)
    rewards, states = episode_rewards(WORLD, tokens), turn_states(WORLD, tokens)
    counts = policy_mask(tokens)[:, ::2].sum(-1).tolist()
    return Rollout(
        prompt_ids=tokens[:1, :1],
        prompt_mask=mask[:1, :1],
        prompt_of_row=torch.zeros(B, dtype=torch.long),
        completion_ids=tokens,
        mask=mask,
        logp=zeros,
        entropy=zeros,
        truncated=~mask[:, -1],
        texts=[""] * B,
        policy_mask=policy_mask(tokens),
        turn_of_token=torch.where(mask, torch.arange(T) // 2, -1),
        episodes=[
            Episode(turn_rewards=rewards[row, : count - 1].tolist(), states=states[row, :count].tolist())
            for row, count in enumerate(counts)
        ],
        group_of_row=torch.arange(B) // 4,
    )


@pytest.mark.parametrize(("name", "scale"), [*((name, "group") for name in BY_TURN), ("gigpo", "none")])
def test_turn_advantages_in_higher_or_lower_are_those_of_the_table(name, scale):
    tokens = guess_tokens([1, 2, 2, 5, 3, 3, 4, 1])
    rollout, rewards, mask = guess_rollout(tokens), episode_rewards(WORLD, tokens), policy_mask(tokens)[:, ::2]
    assert {1, 3} <= set(mask.sum(-1).tolist())
    config = make_config(advantage=name, scale_rewards=scale)
    experience = make_experience(rollout, rewards.sum(-1), config)
    turn_rewards, turn_mask, states = (x.view(2, 4, 3) for x in (rewards, mask, turn_states(WORLD, tokens)))
    expected = {
        "turn": lambda: turn_advantages(turn_rewards, turn_mask),
        "state": lambda: turn_advantages(turn_rewards, turn_mask, states),
        "gigpo": lambda: gigpo_advantages(turn_rewards, turn_mask, states, scale=scale),
    }[name]().view(8, 3)
    assert torch.equal(experience.advantages[:, ::2], expected) and expected.any()
    assert (experience.advantages[:, 1::2] == 0).all()


@pytest.mark.parametrize("name", BY_TURN)
def test_an_episode_without_a_reward_is_left_out(name):
    tokens = guess_tokens([1, 2, 2, 5] * 2)
    rewards = episode_rewards(WORLD, tokens).sum(-1)
    rewards[[1, 4, 5, 6]] = math.nan
    known = torch.tensor([0, 2, 3])
    config = make_config(advantage=name)
    advantages = make_experience(guess_rollout(tokens), rewards, config).advantages
    smaller = replace(config, num_generations=3, generation_batch_size=3)
    expected = make_experience(guess_rollout(tokens[known]), rewards[known], smaller).advantages
    assert torch.equal(advantages[known], expected)
    assert (advantages[[1, 4, 5, 6, 7]] == 0).all()


def collected(name: str, kind=Counted):
    model, tokenizer = make_tool_policy()
    torch.manual_seed(0)
    config = tool_config(advantage=name)
    environment = ToolEnvironment(environment_factory=kind)
    return config, *collect(model, tokenizer, ROWS, length_reward, config, environment=environment)


def test_default_advantage_is_one_per_episode_from_one_call_of_get_reward():
    config, experience, _ = collected("group")
    assert torch.equal(experience.advantages, compute_advantages(experience.rewards, config))
    assert [episode.environment.reward_calls for episode in experience.rollout.episodes] == [1] * 8


class StartsAtTwo(Counted):
    """A `Counted` without randomness, whose reward is 0.2 at first."""

    def reset(self, answer: str, **row) -> str:
        observation = super().reset(answer, **row)
        self.start = 2
        return observation


def test_a_turns_reward_is_the_increase_of_the_environments_reward(monkeypatch):
    """Two scripted episodes: one calls the tool twice, for a total of 3 and then 45; the other never calls it."""
    model, tokenizer = make_tool_policy()
    sample_scripts(
        monkeypatch, tokenizer, [[call("add", a=1, b=2) + END, call("add", a=40, b=2) + END, "ok" + END], ["ok" + END]]
    )
    environment = ToolEnvironment(environment_factory=StartsAtTwo)
    rollout = environment.sample(model, tokenizer, ROWS[:1], SamplingParams(2, 400), record_turns=True)
    twice, never = rollout.episodes
    assert twice.reward == 45.2 and twice.turn_rewards == pytest.approx([3.2, 42.0])
    assert never.reward == 0.2 and never.turn_rewards == []
    assert twice.environment.reward_calls == 3  # after each turn with a call, and at the end
    assert never.environment.reward_calls == 1
    assert twice.states == [(2, 0), (2, 3), (2, 45)] and never.states == [(2, 0)]

    rewards = torch.tensor([50.2, 1.2])  # includes 5 and 1 from reward functions
    turn_rewards, turn_mask = rewards_of_turns(rollout, rewards)
    assert turn_mask.tolist() == [[True, True, True], [True, False, False]]
    torch.testing.assert_close(turn_rewards, torch.tensor([[3.2, 42.0, 5.0], [1.2, 0.0, 0.0]]))
    assert state_ids(rollout).tolist() == [[0, 1, 2], [0, -1, -1]]

    # The rewards to go are 50.2, 47 and 5 in the first episode, and 1.2 in the second. The rewards of the episodes
    # differ from their mean by 24.5. So do those of the two first turns, which begin in the same state. The other two
    # turns are the only ones in their states.
    config = tool_config(advantage="gigpo", scale_rewards="none", num_generations=2, generation_batch_size=2)
    advantages = token_advantages(rollout, rewards, config)
    for row, expected in ((0, [49.0, 24.5, 24.5]), (1, [-49.0])):
        for turn, advantage in enumerate(expected):
            tokens = (rollout.turn_of_token[row] == turn) & rollout.policy_mask[row]
            assert tokens.any() and advantages[row, tokens].tolist() == pytest.approx([advantage] * int(tokens.sum()))
    assert (advantages[~rollout.policy_mask] == 0).all()


def test_recording_rewards_after_every_turn_changes_no_episode_and_they_add_up():
    _, per_turn, _ = collected("gigpo")
    _, at_the_end, _ = collected("group")
    rollout = per_turn.rollout
    assert torch.equal(rollout.completion_ids, at_the_end.rollout.completion_ids)
    assert torch.equal(per_turn.rewards, at_the_end.rewards)
    turn_rewards, turn_mask = rewards_of_turns(rollout, per_turn.rewards)
    torch.testing.assert_close(turn_rewards.sum(-1), per_turn.rewards)
    assert len({episode.environment.reward_calls for episode in rollout.episodes}) > 1
    inputs = [values.view(2, 4, -1) for values in (turn_rewards, turn_mask, state_ids(rollout))]
    expected = gigpo_advantages(*inputs, scale="group").view(8, -1)
    for row, turn in turn_mask.nonzero().tolist():
        tokens = (rollout.turn_of_token[row] == turn) & rollout.policy_mask[row]
        assert (per_turn.advantages[row, tokens] == expected[row, turn]).all()


def run(folder, resume=False, **settings):
    model, tokenizer = make_tool_policy()
    usual = {"output_dir": str(folder), "save_steps": 1, "resume_from_checkpoint": resume, "advantage": "gigpo"}
    config = tool_config(**(usual | {"num_generations": 2, "generation_batch_size": 4, "max_steps": 2} | settings))
    return folder, model, train(model, tokenizer, ROWS, None, config, environment_factory=Counted)


def test_run_with_turn_advantages_resumes_to_the_bit(tmp_path):
    expected = run(tmp_path / "whole")
    run(tmp_path / "stopped", max_steps=1)
    assert_same_end(run(tmp_path / "stopped", resume=True), expected)


def test_turns_of_a_text_environment_are_compared_by_their_number():
    model, tokenizer = make_policy()
    config = make_config(max_completion_length=16, max_steps=1, advantage="turn")
    (metrics,) = train(
        model, tokenizer, LETTER_ROWS, letter_reward, config, environment=TextEnvironment(reply_by_length, STOP_STRINGS)
    )  # fmt: skip
    assert metrics["tools/call_frequency"] > 0 and metrics["grad_norm"] > 0


# Wrong input.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"advantage": "turn", "scale_rewards": "none"}, "leave it out: nothing reads it with advantage = 'turn'"),
        ({"advantage": "gigpo", "scale_rewards": "batch"}, "expected 'group' or 'none' with advantage = 'gigpo'"),
        ({"advantage": "gigpo", "num_generations": 1}, "it must be at least 2 with advantage 'gigpo'"),
        ({"advantage": "turns"}, "advantage is 'turns'; expected one of .*'state', 'gigpo'"),
    ],
)
def test_settings_refuse_what_an_advantage_of_turns_does_not_support(settings, message):
    with pytest.raises(InputError, match=message):
        make_config(**settings)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("turn", {}, "leave it out: there is no environment"),
        ("gigpo", {"environment_factory": Adder}, "whose class has `def get_state"),
        ("state", {"environment": TextEnvironment(reply_by_length, STOP_STRINGS)}, "whose class has `def get_state"),
    ],
)
def test_turn_advantages_require_rewards_or_states_before_the_first_step(name, arguments, words):
    model, tokenizer = make_tool_policy()
    with pytest.raises(InputError, match=f"advantage is '{name}'; .*{words}"):
        train(model, tokenizer, ROWS, length_reward, tool_config(advantage=name), **arguments)


@pytest.mark.parametrize(("method", "value"), [("get_state", [1]), ("get_reward", math.nan), ("get_reward", "much")])
def test_turn_rewards_and_states_of_wrong_type_are_refused(monkeypatch, method, value):
    monkeypatch.setattr(Counted, method, lambda self: value)
    with pytest.raises(InputError, match=rf"Counted.{method} returned"):
        collected("gigpo")


def test_get_state_is_not_offered_as_a_tool():
    names = [schema["function"]["name"] for schema in ToolEnvironment(environment_factory=Counted).schemas]
    assert names == ["add"]
