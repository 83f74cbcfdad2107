"""The experience of a step: the sampled completions, their rewards and advantages, and the mask of the loss."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.base.checks import InputTypeError, check_shapes
from grpo_lab.objective.surrogates import per_token
from grpo_lab.rewards.scoring import LoggedColumns
from grpo_lab.rollout import Rollout


@dataclass(frozen=True)
class Experience:
    """B completions of T tokens with their rewards, advantages and loss mask.

    `experience[rows]` selects rows. `replace(experience, advantages=mine)` replaces the advantages.
    """

    rollout: Rollout
    rewards: Float[Tensor, " B"]  # NaN where no reward function applied
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"]  # one per completion, or one per token
    loss_mask: Bool[Tensor, "B T"]  # True at each token of the policy that enters the loss
    old_logp: Float[Tensor, "B T"] | None = None  # log-probabilities before the first update; None: not computed yet
    ref_logp: Float[Tensor, "B T"] | None = None  # log-probabilities under the reference; None: no KL term
    rewards_per_func: Float[Tensor, "B F"] | None = None  # NaN where a reward function did not apply
    logged_columns: LoggedColumns | None = None  # values that the reward functions logged for each completion

    def __post_init__(self):
        if self.advantages is None:
            raise InputTypeError("experience.advantages", None, "expected a tensor of shape (B,) or (B, T)")
        loss_mask, advantages = (self.loss_mask, "B T"), (self.advantages, "B | B T")
        check_shapes(**{"experience.loss_mask": loss_mask, "experience.advantages": advantages})

    def __len__(self) -> int:
        return len(self.loss_mask)

    def __getitem__(self, rows: slice | Int[Tensor, " R"] | Bool[Tensor, " B"]) -> "Experience":
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: value[rows] for name, value in values.items() if value is not None})

    def split(self, size: int) -> "Iterator[Experience]":
        """Yield consecutive parts of `size` rows; the last part may be smaller."""
        return (self[start : start + size] for start in range(0, len(self), size))

    def has_gradient(self, *, every_row: bool) -> Bool[Tensor, " B"]:
        """Return True for each row with a gradient: one with a token in the loss and an advantage other than zero.

        every_row: Whether a row has a gradient whatever its advantage, because of a KL term or an entropy bonus
            (`config.needs_every_row`).
        """
        if every_row:
            return self.loss_mask.any(-1)
        return (self.loss_mask & (per_token(self.advantages) != 0)).any(-1)
