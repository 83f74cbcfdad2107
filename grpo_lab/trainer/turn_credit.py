"""Credit of turns in a run: the reward that each turn of an episode is credited with, and its advantage.

An environment that has `get_reward` is asked after every turn, and what the reward has grown by is that of the turn.
All else that an episode earns, by reward functions, belongs to its last turn. So the rewards of the turns add up to the
reward of the episode, and what a turn is credited with from then on is what was still to come.
"""

from functools import partial

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.advantages import TURN_ADVANTAGES, advantages_where_rewarded
from grpo_lab.base.checks import InputError
from grpo_lab.config import GRPOConfig
from grpo_lab.rollout import Rollout
from grpo_lab.rollout.environments.environment import Environment, abilities


def check_turn_advantage(config: GRPOConfig, environment: Environment | None = None) -> None:
    """Raise InputError for a `turn_advantage` that asks for more than the environment tells."""
    name = config.turn_advantage
    if name == "trajectory":
        return
    if environment is None:
        raise InputError("turn_advantage", name, "leave it out: there is no environment, and so there are no turns")
    if TURN_ADVANTAGES[name].reads_states and not abilities(environment).has_state:
        expected = "expected an environment_factory whose class has `def get_state(self)`: the state a turn begins in"
        raise InputError("turn_advantage", name, expected)


def token_advantages(rollout: Rollout, rewards: Float[Tensor, " B"], config: GRPOConfig) -> Float[Tensor, "B T"]:
    """Compute the advantage of each turn, by the entry `config.turn_advantage` of the table, and give it to its tokens.

    Completions of a prompt stand together. An episode to which no reward applies (NaN) is left out of its group's
    baseline, and its advantages are zero; so are those of an episode that remains alone in its group.

    rewards: of whole episodes.

    Returns:
        Zero at tokens that the policy did not write.
    """
    turn_rewards, turn_mask = rewards_of_turns(rollout, rewards)
    entry = TURN_ADVANTAGES[config.turn_advantage]
    states = state_ids(rollout) if entry.reads_states else None
    has_reward = ~(turn_rewards.isnan() & turn_mask).any(-1)
    compute = partial(entry.compute, scale=config.scale_rewards) if entry.scales else entry.compute
    group_shape = (-1, config.num_generations)
    grouped_states = None if states is None else states.unflatten(0, group_shape)
    grouped_advantages = advantages_where_rewarded(
        compute,
        has_reward.unflatten(0, group_shape),
        turn_rewards.unflatten(0, group_shape),
        turn_mask.unflatten(0, group_shape),
        grouped_states,
    )
    advantages = rearrange(grouped_advantages, "P G K -> (P G) K")
    return torch.where(rollout.policy_mask, advantages.gather(1, rollout.turn_of_token.clamp(min=0)), 0)


def rewards_of_turns(
    rollout: Rollout, rewards: Float[Tensor, " B"]
) -> tuple[Float[Tensor, "B K"], Bool[Tensor, "B K"]]:
    """The reward of each turn, and which turns there are: those in which the policy wrote.

    What the rewards of an episode's turns do not add up to is the reward of its last turn.
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
    """A number for each state in which a turn begins, the same for equal states; -1 where there is no turn."""
    episodes = [episode.states for episode in rollout.episodes]
    numbers: dict = {}
    rows = [[numbers.setdefault(state, len(numbers)) for state in states] for states in episodes]
    length = int(rollout.turn_of_token.max()) + 1
    padded = [(row + [-1] * length)[:length] for row in rows]
    return torch.tensor(padded, device=rollout.mask.device)
