"""The inputs of a run: model, tokenizer, data, rewards and settings; and the order of its data."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from grpo_lab.base.process_state import SEED_STRIDE
from grpo_lab.config import GRPOConfig
from grpo_lab.rollout.environments.environment import Environment
from grpo_lab.tasks import Rows


# Not compared and not printed field by field: that would read whole models and data sets.
@dataclass(frozen=True, eq=False, repr=False)
class RunInputs:
    """The inputs of a run, under the names of the arguments of `Run` and in their order."""

    model: Any
    tokenizer: Any
    dataset: Rows
    reward_funcs: Callable | list | None  # None: the environment or the user's own loop computes the rewards
    config: GRPOConfig
    eval_dataset: Rows | None = None
    environment: Environment | None = None

    @property
    def datasets(self) -> dict[str, Rows]:
        """The data sets of the run, by the names of their arguments."""
        return {"dataset": self.dataset} | ({} if self.eval_dataset is None else {"eval_dataset": self.eval_dataset})

    def read_data_rows(self, step: int) -> list[dict]:
        """Read the P data rows of a step; every epoch has a new random order, computed from the seed and the epoch.

        step: Index of the step, counted from 0.
        """
        data_rows = []
        first = step * self.config.prompts_per_step
        for position in range(first, first + self.config.prompts_per_step):
            epoch, position_in_epoch = divmod(position, len(self.dataset))
            order = _random_order(len(self.dataset), seed=self.config.seed * SEED_STRIDE + epoch)
            data_rows.append(self.dataset[order[position_in_epoch]])
        return data_rows


@functools.lru_cache(maxsize=2)
def _random_order(count: int, seed: int) -> list[int]:
    """Return the indices 0 to count - 1 in an order that depends on the seed alone."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
