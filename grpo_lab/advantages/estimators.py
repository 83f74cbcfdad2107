"""The table of the estimators of advantages, with one entry for each value of the setting `advantage`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.advantages.formulas import best_of_group, group_advantages, rloo_advantages
from grpo_lab.advantages.turns import gigpo_advantages, turn_advantages
from grpo_lab.base.checks import InputError

EPS = 1e-4  # added to a standard deviation, as by default in `group_advantages`


@runtime_checkable
class AdvantageSettings(Protocol):
    """The settings that the estimators below read; the `GRPOConfig` of a run has them."""

    @property
    def scale_rewards(self) -> str:
        """The standard deviation that divides the advantages, one of `SCALES`."""


class RewardBatch(NamedTuple):
    """The rewards from which the advantages of a step are computed: P prompts with G completions each.

    The rewards are (P, G), or (P, G, K) for an entry of `ADVANTAGES` with `per_turn`.
    """

    rewards: Float[Tensor, "P G"] | Float[Tensor, "P G K"]  # finite where a reward applies
    has_reward: Bool[Tensor, "P G"]  # False for a completion to which no reward applies
    # True where the episode has a turn; None only for an entry without `per_turn`, which does not read it
    turn_mask: Bool[Tensor, "P G K"] = None  # type: ignore[assignment]
    states: Int[Tensor, "P G K"] | None = None  # an integer for the state in which each turn begins
    all_rewards: Float[Tensor, "N ..."] | None = None  # all rewards of the step, if this is one of its groups

    def rewarded_group(self, p: int) -> "RewardBatch":
        """Return group p as a batch of its own, without the completions to which no reward applies."""
        rewarded = self.has_reward[p]
        return RewardBatch(
            rewards=self.rewards[p, rewarded][None],
            has_reward=rewarded[rewarded][None],
            turn_mask=None if self.turn_mask is None else self.turn_mask[p, rewarded][None],
            states=None if self.states is None else self.states[p, rewarded][None],
            all_rewards=self.rewards[self.has_reward],
        )


@dataclass(frozen=True)
class AdvantageEstimator:
    """An entry of `ADVANTAGES`: how a run with `advantage = NAME` computes advantages, and what that needs.

    Args:
        formula: Function of a `RewardBatch` in which all completions have rewards, and of the settings of the run. It
            returns advantages of the shape of the rewards.
        reads: Names of the settings that `formula` reads. A run with this entry refuses any other such setting.
        min_group_size: Smallest number of completions per prompt. A run with fewer is refused.
        min_rewards: Smallest number of rewards from which the advantages of a group are computed, if some of its
            completions have no reward.
        per_turn: Whether each turn of an episode has an advantage of its own; the run then needs an environment.
        reads_states: Whether turns in the same state are compared; the environment must then have `get_state`.
        zero_for_equal_rewards: Whether all advantages of a group with equal rewards are zero, whatever the rewards are.
        check: Function that raises InputError for settings of the run that `formula` does not support.
    """

    formula: Callable[[RewardBatch, AdvantageSettings], Tensor]
    reads: tuple[str, ...] = ()
    min_group_size: int = 2
    min_rewards: int = 2
    per_turn: bool = False
    reads_states: bool = False
    zero_for_equal_rewards: bool = False
    check: Callable[[AdvantageSettings], None] = lambda settings: None

    def compute(self, batch: RewardBatch, settings: AdvantageSettings) -> Float[Tensor, "P G ..."]:
        """Compute the advantages of a step in which some completions may have no reward.

        A completion without a reward gets an advantage of zero and enters no baseline: the formula sees only the other
        completions of its group. A group in which fewer than `min_rewards` completions have a reward has no
        baseline, and all its advantages are zero. (If G is 1, a completion with a reward is the whole group.)

        Args:
            batch: The rewards; values where `has_reward` is False have no effect, NaN included.
            settings: The settings of the run. A formula of the user's may read any of its `GRPOConfig`.
        """
        if batch.has_reward.all():
            return self.formula(batch, settings)
        min_rewards = min(self.min_rewards, batch.has_reward.shape[1])
        advantages = torch.zeros_like(batch.rewards)
        for p, rewarded in enumerate(batch.has_reward):
            if rewarded.sum() >= min_rewards:
                advantages[p, rewarded] = self.formula(batch.rewarded_group(p), settings)[0]
        return advantages


def group_advantages_of_step(batch: RewardBatch, settings: AdvantageSettings) -> Tensor:
    """Compute `group_advantages`; scale "batch" divides by the standard deviation of all rewards of the step."""
    if settings.scale_rewards != "batch" or batch.all_rewards is None:
        return group_advantages(batch.rewards, settings.scale_rewards)
    # As in `group_advantages`, the deviation is computed from the differences from the first reward.
    std = (batch.all_rewards - batch.all_rewards[0]).std()
    return group_advantages(batch.rewards, "none") / (std + EPS)


def check_gigpo(settings: AdvantageSettings) -> None:
    if settings.scale_rewards == "batch":
        raise InputError("scale_rewards", "batch", "expected 'group' or 'none' with advantage = 'gigpo'")


# The formula of an entry calls a function of formulas.py or turns.py with the tensors and the settings that it reads.
ADVANTAGES = {
    "group": AdvantageEstimator(group_advantages_of_step, reads=("scale_rewards",), zero_for_equal_rewards=True),
    "rloo": AdvantageEstimator(lambda batch, settings: rloo_advantages(batch.rewards), zero_for_equal_rewards=True),
    "best_of_group": AdvantageEstimator(
        lambda batch, settings: best_of_group(batch.rewards), zero_for_equal_rewards=True
    ),
    "none": AdvantageEstimator(lambda batch, settings: batch.rewards.clone(), min_group_size=1, min_rewards=1),
    "turn": AdvantageEstimator(lambda batch, settings: turn_advantages(batch.rewards, batch.turn_mask), per_turn=True),
    "state": AdvantageEstimator(
        lambda batch, settings: turn_advantages(batch.rewards, batch.turn_mask, batch.states),
        per_turn=True,
        reads_states=True,
    ),
    "gigpo": AdvantageEstimator(
        lambda batch, settings: gigpo_advantages(
            batch.rewards, batch.turn_mask, batch.states, scale=settings.scale_rewards
        ),
        reads=("scale_rewards",),
        per_turn=True,
        reads_states=True,
        check=check_gigpo,
    ),
}
