"""The experience of a step: what was sampled, its rewards and advantages, and which tokens enter the loss."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.base.checks import InputTypeError, check_shapes
from grpo_lab.config import GRPOConfig
from grpo_lab.objective.surrogates import per_token
from grpo_lab.rewards.logs import Columns
from grpo_lab.rollout import Rollout


@dataclass(frozen=True)
class Experience:
    """B rows of T tokens; `experience[rows]` are some. Put in your own: `replace(experience, advantages=mine)`."""

    rollout: Rollout
    rewards: Float[Tensor, " B"]  # NaN where no reward function applied
    advantages: Float[Tensor, " B"] | Float[Tensor, "B T"]  # one per completion; or one per token
    loss_mask: Bool[Tensor, "B T"]  # tokens that enter the loss: of those that the policy wrote
    old_logp: Float[Tensor, "B T"] | None = None  # None: the policy's, before its first update
    ref_logp: Float[Tensor, "B T"] | None = None
    rewards_per_func: Float[Tensor, "B F"] | None = None  # NaN where one did not apply
    reward_columns: Columns | None = None  # what reward functions logged of each completion

    def __post_init__(self):
        if self.advantages is None:
            raise InputTypeError("experience.advantages", None, "expected a tensor of shape (B,) or (B, T)")
        shapes = {
            "experience.loss_mask": (self.loss_mask, "B T"),
            "experience.advantages": (self.advantages, "B | B T"),
        }
        check_shapes(**shapes)

    def __len__(self) -> int:
        return len(self.loss_mask)

    def __getitem__(self, rows: slice | Int[Tensor, " R"] | Bool[Tensor, " B"]) -> "Experience":
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: value[rows] for name, value in values.items() if value is not None})

    @property
    def mask(self) -> Bool[Tensor, "B T"]:
        """Deprecated: the name of `loss_mask` before 1.0.0."""
        warnings.warn("experience.mask is called loss_mask now", DeprecationWarning, stacklevel=2)
        return self.loss_mask

    def split(self, size: int) -> "Iterator[Experience]":
        """Cut into parts of `size` rows, in their order; the last one may be smaller."""
        return (self[start : start + size] for start in range(0, len(self), size))

    def rows_with_gradient(self, config: GRPOConfig) -> Bool[Tensor, " B"]:
        """The rows that carry gradient: an advantage of zero has none, unless a KL term or an entropy bonus counts."""
        if config.needs_every_row:
            return self.loss_mask.any(-1)
        return (self.loss_mask & (per_token(self.advantages) != 0)).any(-1)
