"""Collecting experience: sample completions, reward them, and compute the advantages of completions or of turns.

The `get_reward` of an environment is called after every turn; its increase is the reward of the turn. Rewards of the
reward functions belong to the last turn. So the rewards of the turns sum to the reward of the episode, and the reward
to go of a turn is the part of the reward that the episode has not received before it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.advantages import ADVANTAGES, RewardBatch
from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import autocast
from grpo_lab.rewards.scoring import RewardLog
from grpo_lab.rollout import Rollout
from grpo_lab.rollout.environments.environment import Environment, sample_rollout
from grpo_lab.trainer.experience import Experience
from grpo_lab.trainer.metrics import Clock, merge_metrics, reward_metrics, rollout_metrics
from grpo_lab.trainer.rewarding import reward_rollout


def collect(
    model,
    tokenizer,
    data_rows: list[dict],
    reward_funcs: Callable | list | None,
    config: GRPOConfig,
    clock: Clock | None = None,
    environment: Environment | None = None,
    trainer_state: Any = None,
) -> tuple[Experience, dict]:
    """Sample G completions for each data row, reward them, and compute the advantage of each within its group.

    Args:
        model, tokenizer: The policy and its tokenizer.
        data_rows: P rows of the data set, with a "prompt" and the columns that the reward functions read, such as
            `run.data_rows_of_step(step)`.
        reward_funcs: One reward function or several. None if the environment computes the reward.
        config: The settings of the run.
        clock: Clock of this step, to which the seconds of each phase are added; `train` adds them to the metrics.
        environment: The environment that replies to the policy. None: the policy writes each completion alone.
        trainer_state: Progress of the run for reward functions that read it, such as `run.trainer_state(step)`.

    Returns:
        The experience of B = P * G rows, in the order of the prompts, and the metrics of sampling and rewards by name.
    """
    clock = clock or Clock(model.device)
    seconds_before = clock.totals.get("time/rollout", 0.0)
    with clock("time/rollout"), autocast(model, config):
        record_turns = ADVANTAGES[config.advantage].per_turn
        sampling_params = config.sampling_params()
        rollout = sample_rollout(model, tokenizer, data_rows, sampling_params, environment, record_turns=record_turns)
    reward_log = RewardLog(trainer_state)
    with clock("time/reward"):
        rewards = reward_rollout(rollout, data_rows, reward_funcs, config.reward_weights, reward_log)
    experience = make_experience(rollout, rewards.total, config, rewards.rewards_per_func)
    experience = replace(experience, logged_columns=reward_log.columns(len(experience)))
    seconds = clock.totals["time/rollout"] - seconds_before
    metrics = merge_metrics(
        rollout_metrics(rollout, seconds), reward_metrics(experience, rewards), reward_log.metrics()
    )
    return experience, metrics


def make_experience(
    rollout: Rollout,
    rewards: Float[Tensor, " B"],
    config: GRPOConfig,
    rewards_per_func: Float[Tensor, "B F"] | None = None,
) -> Experience:
    """Build the experience of a rollout: compute its advantages and the mask of the tokens that enter the loss."""
    device = rollout.mask.device
    rewards = rewards.to(device)
    if rewards_per_func is not None:
        rewards_per_func = rewards_per_func.to(device)
    loss_mask = rollout.policy_mask
    if config.mask_truncated_completions:
        loss_mask = loss_mask & ~rollout.truncated[:, None]
    if ADVANTAGES[config.advantage].per_turn:
        advantages = turn_advantages_per_token(rollout, rewards, config)
    else:
        advantages = compute_advantages(rewards, config)
    return Experience(rollout, rewards, advantages, loss_mask, rewards_per_func=rewards_per_func)


def compute_advantages(rewards: Float[Tensor, " B"], config: GRPOConfig) -> Float[Tensor, " B"]:
    """Compute the advantage of each completion within its group of `config.num_generations` consecutive rows.

    For `config.advantage` = "group" the result is `group_advantages(rewards, scale, ddof=1, eps=1e-4)` of notebook 02,
    where scale is `config.scale_rewards`: "group", "batch" or "none".

    A completion to which no reward applies (NaN) is left out of its group, and its own advantage is zero. If only one
    completion of a prompt is left, it has no baseline, and its advantage is zero as well. (With the advantage "none" it
    keeps its reward.) With scale "batch" the deviation is taken over all rewards that apply.

    rewards: Total rewards of B = P * G completions, NaN where no reward function applies. `score_completions` refuses
        totals so large that the sum of their squares overflows.
    """
    grouped_rewards = rearrange(rewards, "(P G) -> P G", G=config.num_generations)
    batch = RewardBatch(grouped_rewards, has_reward=~grouped_rewards.isnan())
    advantages = ADVANTAGES[config.advantage].compute(batch, config)
    return advantages.flatten()


def turn_advantages_per_token(
    rollout: Rollout, rewards: Float[Tensor, " B"], config: GRPOConfig
) -> Float[Tensor, "B T"]:
    """Compute the advantage of each turn by `ADVANTAGES[config.advantage]`, for all tokens of the turn.

    Completions of a prompt are adjacent. `AdvantageEstimator.compute` describes the rule for an episode to which no
    reward applies (NaN).

    Args:
        rollout: The B episodes.
        rewards: The rewards of whole episodes.
        config: The settings of the run.

    Returns:
        The advantage of each token; zero at tokens that the policy did not write.
    """
    turn_rewards, turn_mask = rewards_of_turns(rollout, rewards)
    estimator = ADVANTAGES[config.advantage]
    has_reward = ~(turn_rewards.isnan() & turn_mask).any(-1)
    group_shape = (-1, config.num_generations)
    batch = RewardBatch(
        turn_rewards.unflatten(0, group_shape),
        has_reward.unflatten(0, group_shape),
        turn_mask.unflatten(0, group_shape),
        turn_state_ids(rollout).unflatten(0, group_shape) if estimator.reads_states else None,
    )
    advantages = rearrange(estimator.compute(batch, config), "P G K -> (P G) K")
    return torch.where(rollout.policy_mask, advantages.gather(1, rollout.turn_of_token.clamp(min=0)), 0)


def rewards_of_turns(
    rollout: Rollout, rewards: Float[Tensor, " B"]
) -> tuple[Float[Tensor, "B K"], Bool[Tensor, "B K"]]:
    """Return the reward of each turn, and a mask that is True for each turn in which the policy wrote.

    The reward of the last turn is the reward of the episode minus the rewards of the turns before.
    """
    turn = torch.where(rollout.policy_mask, rollout.turn_of_token, -1)
    turn_mask = (turn[:, :, None] == torch.arange(int(turn.max()) + 1, device=turn.device)).any(1)
    turn_rewards = torch.zeros(turn_mask.shape, dtype=rewards.dtype, device=rewards.device)
    episodes = rollout.episode_per_row()
    for row, (count, episode) in enumerate(zip(turn_mask.sum(-1).tolist(), episodes, strict=True)):
        before_last = episode.turn_rewards[: count - 1]
        turn_rewards[row, : len(before_last)] = turn_rewards.new_tensor(before_last)
        turn_rewards[row, count - 1] = rewards[row] - sum(before_last)
    return turn_rewards, turn_mask


def turn_state_ids(rollout: Rollout) -> Int[Tensor, "B K"]:
    """Return an index for the state in which each turn begins, the same for equal states.

    An entry after the last turn of an episode is not the state of a turn, whatever its value: -1, or the index of a
    state recorded after a reply that no turn follows. The mask of `rewards_of_turns` is False there.
    """
    states_of_episodes = [episode.states for episode in rollout.episode_per_row()]
    index_of_state: dict = {}
    ids_of_episodes = [
        [index_of_state.setdefault(state, len(index_of_state)) for state in states] for states in states_of_episodes
    ]
    num_turns = int(rollout.turn_of_token.max()) + 1
    padded_ids = [(ids + [-1] * num_turns)[:num_turns] for ids in ids_of_episodes]
    return torch.tensor(padded_ids, device=rollout.mask.device)
