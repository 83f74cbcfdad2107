"""Credit assignment over the turns of an episode: the reward of each turn, and its advantage.

The `get_reward` of an environment is called after every turn; its increase is the reward of the turn. Rewards of the
reward functions belong to the last turn. So the rewards of the turns sum to the reward of the episode, and the reward
to go of a turn is the part of the reward that the episode has not received before it.
"""

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.advantages import ADVANTAGES, RewardBatch
from grpo_lab.base.checks import InputError
from grpo_lab.config import GRPOConfig
from grpo_lab.rollout import Rollout
from grpo_lab.rollout.environments.environment import Environment


def check_turn_advantage(config: GRPOConfig, environment: Environment | None = None) -> None:
    """Raise InputError if the environment does not provide what the setting `advantage` needs."""
    name, entry = config.advantage, ADVANTAGES[config.advantage]
    if entry.per_turn and environment is None:
        raise InputError("advantage", name, "leave it out: there is no environment, and so there are no turns")
    if entry.reads_states and not (environment is not None and environment.has_state):
        expected = "expected an environment_factory whose class has `def get_state(self)`: the state a turn begins in"
        raise InputError("advantage", name, expected)


def token_advantages(rollout: Rollout, rewards: Float[Tensor, " B"], config: GRPOConfig) -> Float[Tensor, "B T"]:
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
    entry = ADVANTAGES[config.advantage]
    has_reward = ~(turn_rewards.isnan() & turn_mask).any(-1)
    group_shape = (-1, config.num_generations)
    batch = RewardBatch(
        turn_rewards.unflatten(0, group_shape),
        has_reward.unflatten(0, group_shape),
        turn_mask.unflatten(0, group_shape),
        state_ids(rollout).unflatten(0, group_shape) if entry.reads_states else None,
    )
    advantages = rearrange(entry.compute(batch, config), "P G K -> (P G) K")
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


def state_ids(rollout: Rollout) -> Int[Tensor, "B K"]:
    """Return an index for the state in which each turn begins, the same for equal states; -1 where there is no turn."""
    states_of_episodes = [episode.states for episode in rollout.episode_per_row()]
    index_of_state: dict = {}
    rows = [
        [index_of_state.setdefault(state, len(index_of_state)) for state in states] for states in states_of_episodes
    ]
    length = int(rollout.turn_of_token.max()) + 1
    padded = [(row + [-1] * length)[:length] for row in rows]
    return torch.tensor(padded, device=rollout.mask.device)
