"""The table of the estimators of advantages, with one entry for each value of the setting `advantage`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.advantages.formulas import best_of_group, rloo_advantages
from grpo_lab.advantages.missing_rewards import advantages_where_rewarded, group_advantages_where_rewarded
from grpo_lab.advantages.turns import gigpo_advantages, turn_advantages
from grpo_lab.base.checks import InputError


class RewardBatch(NamedTuple):
    """The rewards from which the advantages of a step are computed: P prompts with G completions each.

    The rewards are (P, G), or (P, G, K) for an entry of `ADVANTAGES` with `per_turn`.
    """

    rewards: Float[Tensor, "P G"] | Float[Tensor, "P G K"]  # finite where a reward applies
    has_reward: Bool[Tensor, "P G"]  # False for a completion to which no reward applies
    turn_mask: Bool[Tensor, "P G K"] | None = None  # True where the episode has a turn
    states: Int[Tensor, "P G K"] | None = None  # an integer for the state in which each turn begins


@dataclass(frozen=True)
class AdvantageEstimator:
    """An entry of `ADVANTAGES`: how a run with `advantage = NAME` computes advantages, and what that needs.

    Args:
        compute: Function of a `RewardBatch` and the settings of the run, a `GRPOConfig`, that returns advantages of the
            shape of the rewards. A completion to which no reward applies gets an advantage of zero.
        reads: Names of the settings that `compute` reads. A run with this entry refuses any other such setting.
        smallest_group: Smallest number of completions per prompt.
        per_turn: Whether each turn of an episode has an advantage of its own; the run then needs an environment.
        reads_states: Whether turns in the same state are compared; the environment must then have `get_state`.
        check: Function that raises InputError for settings of the run that `compute` does not support.
    """

    compute: Callable[[RewardBatch, Any], Tensor]
    reads: tuple[str, ...] = ()
    smallest_group: int = 2
    per_turn: bool = False
    reads_states: bool = False
    check: Callable[[Any], None] = lambda config: None


# The following functions pass tensors of the batch and settings to the formulas in formulas.py and turns.py.
def group_advantages_of_batch(batch: RewardBatch, config: Any) -> Tensor:
    return group_advantages_where_rewarded(batch.rewards, batch.has_reward, config.scale_rewards)


def rloo_advantages_of_batch(batch: RewardBatch, config: Any) -> Tensor:
    return advantages_where_rewarded(rloo_advantages, batch.has_reward, batch.rewards)


def best_of_group_of_batch(batch: RewardBatch, config: Any) -> Tensor:
    return advantages_where_rewarded(best_of_group, batch.has_reward, batch.rewards)


def rewards_of_batch(batch: RewardBatch, config: Any) -> Tensor:
    return torch.where(batch.has_reward, batch.rewards, 0)


def turn_advantages_of_batch(batch: RewardBatch, config: Any) -> Tensor:
    return advantages_where_rewarded(turn_advantages, batch.has_reward, batch.rewards, batch.turn_mask)


def state_advantages_of_batch(batch: RewardBatch, config: Any) -> Tensor:
    return advantages_where_rewarded(turn_advantages, batch.has_reward, batch.rewards, batch.turn_mask, batch.states)


def gigpo_advantages_of_batch(batch: RewardBatch, config: Any) -> Tensor:
    compute = partial(gigpo_advantages, scale=config.scale_rewards)
    return advantages_where_rewarded(compute, batch.has_reward, batch.rewards, batch.turn_mask, batch.states)


def check_gigpo(config: Any) -> None:
    if config.scale_rewards == "batch":
        raise InputError("scale_rewards", "batch", "expected 'group' or 'none' with advantage = 'gigpo'")


ADVANTAGES = {
    "group": AdvantageEstimator(group_advantages_of_batch, reads=("scale_rewards",)),
    "rloo": AdvantageEstimator(rloo_advantages_of_batch),
    "best_of_group": AdvantageEstimator(best_of_group_of_batch),
    "none": AdvantageEstimator(rewards_of_batch, smallest_group=1),
    "turn": AdvantageEstimator(turn_advantages_of_batch, per_turn=True),
    "state": AdvantageEstimator(state_advantages_of_batch, per_turn=True, reads_states=True),
    "gigpo": AdvantageEstimator(
        gigpo_advantages_of_batch, reads=("scale_rewards",), per_turn=True, reads_states=True, check=check_gigpo
    ),
}
