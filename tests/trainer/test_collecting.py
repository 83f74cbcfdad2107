"""Collected experience: its order, its advantages, the mask of its loss, and metrics whose names are all different.

The advantages of turns are computed from the rewards and states of the environment by the table.
"""

import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from grpo_lab.advantages import ADVANTAGES, RewardBatch, gigpo_advantages, turn_advantages
from grpo_lab.base.checks import InputError, RunError
from grpo_lab.config.settings import SamplingParams
from grpo_lab.objective import LOSSES
from grpo_lab.rollout import Rollout
from grpo_lab.rollout.environments.text_environment import TextEnvironment
from grpo_lab.rollout.environments.tools import ToolEnvironment
from grpo_lab.rollout.rollout import Episode
from grpo_lab.toys.guess import GuessPolicy, GuessWorld, policy_mask, sample_episodes
from grpo_lab.toys.guess.world import episode_rewards, turn_states
from grpo_lab.trainer import collect, train
from grpo_lab.trainer.collecting import (
    compute_advantages,
    make_experience,
    rewards_of_turns,
    turn_advantages_per_token,
    turn_state_ids,
)
from grpo_lab.trainer.metrics import Clock
from tests.support.agreement import draw
from tests.support.resuming import assert_same_end
from tests.support.small_policy import (
    ROWS,
    length_reward_or_none,
    letter_reward,
    make_config,
    make_policy,
    ragged_experience,
)
from tests.support.text_episodes import STOP_STRINGS, reply_by_length
from tests.support.tool_policy import (
    END,
    Adder,
    call,
    length_reward,
    make_tool_policy,
    sample_scripts,
    tool_config,
)
from tests.support.tool_policy import ROWS as TOOL_ROWS


def test_the_rows_are_in_the_order_of_the_prompts_with_their_rewards_and_logged_columns():
    def reward(completions, completion_ids, answer, log_extra, log_metric, **kwargs):
        log_extra("length", [len(ids) for ids in completion_ids])
        log_metric("answers", len(set(answer)))
        return [float(answer == "d") for answer in answer]

    experience, metrics = collect(*make_policy(), ROWS[:2], [reward, length_reward_or_none], make_config())
    lengths = experience.rollout.mask.sum(-1).tolist()
    of_length = [float(length) if length > 1 else math.nan for length in lengths]
    by_answer = [0.0] * 4 + [1.0] * 4
    expected = torch.tensor([by_answer, of_length]).T
    torch.testing.assert_close(experience.rewards_per_func, expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(experience.rewards, expected.nansum(-1), rtol=0, atol=0)
    assert experience.rollout.prompt_of_row.tolist() == [0] * 4 + [1] * 4
    assert experience.logged_columns.values == {"length": lengths}
    assert metrics["answers"] == 2.0
    assert metrics["rewards/reward/mean"] == 0.5
    assert torch.equal(experience.advantages, compute_advantages(experience.rewards, make_config()))


def test_tokens_per_second_is_that_of_one_rollout_if_a_clock_is_used_for_several():
    readings = itertools.count()  # each phase takes one second
    clock = Clock(torch.device("cpu"), read=lambda: float(next(readings)))
    for count in (1, 2):
        experience, metrics = collect(*make_policy(), ROWS[:2], letter_reward, make_config(), clock=clock)
        assert metrics["tokens_per_second"] == experience.rollout.mask.sum()
        assert clock.totals["time/rollout"] == count


def test_the_loss_leaves_out_truncated_completions_if_the_settings_say_so():
    rollout = ragged_experience([3, 5, 2, 5], columns=5).rollout
    assert rollout.truncated.tolist() == [False, True, False, True]
    for masks, expected in ((False, [3, 5, 2, 5]), (True, [3, 0, 2, 0])):
        config = make_config(generation_batch_size=4, mask_truncated_completions=masks)
        experience = make_experience(rollout, torch.tensor([1.0, 2.0, 3.0, 4.0]), config)
        assert experience.loss_mask.sum(-1).tolist() == expected
        assert not (experience.loss_mask & ~rollout.mask).any()


def test_completions_without_any_reward_are_left_out_of_every_comparison():
    """Completions without a reward have no gradient. In the second of two groups only one completion has a reward."""
    nan, centred = float("nan"), [x - 8 / 3 for x in (1, 3, 4)]
    rewards = torch.tensor([1.0, nan, 3.0, 4.0, nan, nan, 2.0, nan])
    of_group, of_batch = (np.std(scores, ddof=1) + 1e-4 for scores in ([1, 3, 4], [1, 3, 4, 2]))
    for settings, first, alone in [
        ({}, [x / of_group for x in centred], 0.0),
        ({"scale_rewards": "batch"}, [x / of_batch for x in centred], 0.0),
        ({"scale_rewards": "none"}, centred, 0.0),
        ({"advantage": "rloo"}, [-2.5, 0.5, 2.0], 0.0),
        ({"advantage": "none"}, [1, 3, 4], 2.0),
        ({"advantage": "best_of_group"}, [0, 0, 4], 0.0),
    ]:
        experience = make_experience(ragged_experience([2] * 8).rollout, rewards, make_config(**settings))
        expected = [first[0], 0, first[1], first[2], 0, 0, alone, 0]
        assert experience.advantages.tolist() == pytest.approx(expected, abs=1e-5), settings
        assert experience.rows_with_gradient(every_row=False).tolist() == [x != 0 for x in expected]
        assert torch.equal(experience.advantages, compute_advantages(rewards, make_config(**settings)))


@pytest.mark.parametrize("missing", [False, True])
def test_the_advantages_of_a_run_are_those_of_its_entry_and_zero_without_a_reward(missing):
    rewards = draw(3, 4, seed=2)
    has_reward = torch.ones(3, 4, dtype=torch.bool)
    has_reward[0, 1] = has_reward[2, 1:] = not missing  # in the three groups, 1, 0 and 3 of the 4 rewards are missing
    rewards = torch.where(has_reward, rewards, float("nan"))
    for settings in (
        *({"scale_rewards": scale} for scale in ("group", "batch", "none")),
        *({"advantage": name} for name in ("rloo", "best_of_group", "none")),
    ):
        config = make_config(generation_batch_size=12, **settings)
        advantages = compute_advantages(rewards.flatten(), config).view(3, 4)
        assert (advantages[~has_reward] == 0).all()
        is_batch = config.scale_rewards == "batch"
        std = rewards[has_reward].std() + 1e-4 if is_batch else 1
        of_group = make_config(scale_rewards="none") if is_batch else config
        for p, row in enumerate(has_reward):
            if row.sum() == 1 and config.advantage != "none":
                assert not advantages[p].any()
            else:
                group = RewardBatch(rewards[p, row][None], has_reward=row[row][None])
                expected = ADVANTAGES[config.advantage].compute(group, of_group) / std
                torch.testing.assert_close(advantages[p, row][None], expected)


def test_a_reward_without_the_state_of_the_run_is_told_which_argument_is_missing():
    def reads_state(completions, trainer_state, **kwargs):
        return [1.0] * len(completions)

    with pytest.raises(TypeError, match="missing a required argument: 'trainer_state'"):
        collect(*make_policy(), ROWS[:2], reads_state, make_config())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda log_metric, log_extra: log_metric("a", "b"), "log_metric was called with 'a' and 'b'; expected a text"),
        (
            lambda log_metric, log_extra: log_extra("a", [object()]),
            "log_extra was called with 'a' and .*; expected a t",
        ),
        (lambda log_metric, log_extra: log_extra("a", [1]), "log_extra got 1 values for 'a'; expected 8, one for"),
    ],
)
def test_log_metric_and_log_extra_refuse_wrong_arguments_by_name(call, message):
    def reward(completions, log_metric, log_extra, **kwargs):
        call(log_metric, log_extra)
        return [1.0] * len(completions)

    config = make_config(num_generations=4, generation_batch_size=8)
    with pytest.raises(InputError, match=message):
        collect(*make_policy(), ROWS[:2], reward, config)


def logging_reward(name):
    """Return a reward function that logs a metric of this name."""

    def reward(completions, completion_ids, log_metric, **kwargs):
        log_metric(name, 1)
        return letter_reward(completions, completion_ids)

    return reward


OF_COLLECT = ("reward", "num_tokens", "completions/mean_length", "rewards/reward/std")
OF_THE_STEP = (
    "loss", "grad_norm", "ratio", "clip_ratio/low_mean", "kl", "learning_rate", "rows_without_gradient",
    "sampling/logp_difference_max", "time/update", "step", "step_time",
)  # fmt: skip


@pytest.mark.parametrize("name", OF_COLLECT)
def test_a_logged_metric_may_not_have_the_name_of_a_rollout_or_reward_metric(name):
    with pytest.raises(RunError, match=re.escape(f"metrics have '{name}' twice; expected another name")):
        collect(*make_policy(), ROWS[:2], logging_reward(name), make_config())


@pytest.mark.parametrize("name", OF_THE_STEP)
def test_a_logged_metric_may_not_have_the_name_of_a_step_metric(name):
    config = make_config(beta=0.1, max_steps=1)
    with pytest.raises(RunError, match=re.escape(f"metrics have '{name}' twice; expected another name")):
        train(*make_policy(), ROWS, logging_reward(name), config)


@pytest.mark.parametrize("name", ["loss", "sampling/logp_difference_max", "grad_norm", "learning_rate"])
def test_a_metric_of_a_users_loss_may_not_have_the_name_of_an_update_metric(name, monkeypatch):
    own_loss = replace(LOSSES["grpo"], clip_metrics=lambda batch, settings: {name: batch.ratio > 2})
    monkeypatch.setitem(LOSSES, "grpo", own_loss)
    with pytest.raises(RunError, match=f"^metrics have '{name}' twice; .*`clip_metrics` of the loss"):
        train(*make_policy(), ROWS, letter_reward, make_config(loss_type="grpo", max_steps=1))


def test_a_logged_metric_may_not_have_the_name_of_a_metric_of_a_users_loss(monkeypatch):
    """`collect` cannot know the name: the loss returns it with the first update."""

    def reward(completions, log_metric, **kwargs):
        log_metric("my_clip", 42)
        return [1.0, 0.0] * (len(completions) // 2)

    own_loss = replace(LOSSES["grpo"], clip_metrics=lambda batch, settings: {"my_clip": batch.ratio > 2})
    with monkeypatch.context() as patch:
        patch.setitem(LOSSES, "grpo", own_loss)
        with pytest.raises(RunError, match="^metrics have 'my_clip' twice; expected another name in `log_metric`"):
            train(*make_policy(), ROWS, reward, make_config(loss_type="grpo"))
        assert train(*make_policy(), ROWS, letter_reward, make_config(loss_type="grpo"))[0]["my_clip"] == 0
    assert train(*make_policy(), ROWS, reward, make_config(loss_type="grpo"))[0]["my_clip"] == 42


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
    return config, *collect(model, tokenizer, TOOL_ROWS, length_reward, config, environment=environment)


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
    rollout = environment.sample(model, tokenizer, TOOL_ROWS[:1], SamplingParams(2, 400), record_turns=True)
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
    assert turn_state_ids(rollout).tolist() == [[0, 1, 2], [0, -1, -1]]

    # The rewards to go are 50.2, 47 and 5 in the first episode, and 1.2 in the second. The rewards of the episodes
    # differ from their mean by 24.5. So do those of the two first turns, which begin in the same state. The other two
    # turns are the only ones in their states.
    config = tool_config(advantage="gigpo", scale_rewards="none", num_generations=2, generation_batch_size=2)
    advantages = turn_advantages_per_token(rollout, rewards, config)
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
    inputs = [values.view(2, 4, -1) for values in (turn_rewards, turn_mask, turn_state_ids(rollout))]
    expected = gigpo_advantages(*inputs, scale="group").view(8, -1)
    for row, turn in turn_mask.nonzero().tolist():
        tokens = (rollout.turn_of_token[row] == turn) & rollout.policy_mask[row]
        assert (per_turn.advantages[row, tokens] == expected[row, turn]).all()


def run(folder, resume=False, **settings):
    model, tokenizer = make_tool_policy()
    usual = {"output_dir": str(folder), "save_steps": 1, "resume_from_checkpoint": resume, "advantage": "gigpo"}
    config = tool_config(**(usual | {"num_generations": 2, "generation_batch_size": 4, "max_steps": 2} | settings))
    return folder, model, train(model, tokenizer, TOOL_ROWS, None, config, environment_factory=Counted)


@pytest.mark.slow
def test_run_with_turn_advantages_resumes_to_the_bit(tmp_path):
    expected = run(tmp_path / "whole")
    run(tmp_path / "stopped", max_steps=1)
    assert_same_end(run(tmp_path / "stopped", resume=True), expected)


def test_turns_of_a_text_environment_are_compared_by_their_number():
    model, tokenizer = make_policy()
    config = make_config(max_completion_length=16, max_steps=1, advantage="turn")
    (metrics,) = train(
        model, tokenizer, ROWS, letter_reward, config, environment=TextEnvironment(reply_by_length, STOP_STRINGS)
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
        train(model, tokenizer, TOOL_ROWS, length_reward, tool_config(advantage=name), **arguments)


def test_get_reward_may_return_the_same_numbers_with_every_advantage(monkeypatch):
    rewards_of_advantages = {}
    for name, convert in (("group", float), ("group", torch.tensor), ("turn", torch.tensor)):
        monkeypatch.setattr(Counted, "get_reward", lambda self, convert=convert: convert(Adder.get_reward(self) // 1))
        rewards_of_advantages[name, convert] = collected(name)[1].rewards.tolist()
    assert len(set(map(tuple, rewards_of_advantages.values()))) == 1


@pytest.mark.parametrize("name", ["group", "turn"])
def test_get_reward_may_return_no_reward_beyond_the_limit(monkeypatch, name):
    monkeypatch.setattr(Counted, "get_reward", lambda self: 1e20)
    with pytest.raises(InputError, match=r"Counted.* returned float 1e[+]20.*; expected a number of at most 1e[+]15"):
        collected(name)


@pytest.mark.parametrize(("method", "value"), [("get_state", [1]), ("get_reward", math.nan), ("get_reward", "much")])
def test_turn_rewards_and_states_of_wrong_type_are_refused(monkeypatch, method, value):
    monkeypatch.setattr(Counted, method, lambda self: value)
    with pytest.raises(InputError, match=rf"Counted.{method} returned"):
        collected("gigpo")


def test_get_state_is_not_offered_as_a_tool():
    names = [schema["function"]["name"] for schema in ToolEnvironment(environment_factory=Counted).schemas]
    assert names == ["add"]
