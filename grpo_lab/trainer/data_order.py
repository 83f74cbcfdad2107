"""The order in which a run goes through its data."""

import functools

import torch

from grpo_lab.base.random_state import SEED_STRIDE
from grpo_lab.config import GRPOConfig
from grpo_lab.tasks import Rows


def rows_of_training_step(dataset: Rows, config: GRPOConfig, step: int) -> list[dict]:
    """Return the rows of a step; every epoch has a new random order, computed only from the seed and the epoch.

    step: Index of the step, counted from 0.
    """
    rows = []
    first = step * config.prompts_per_step
    for position in range(first, first + config.prompts_per_step):
        epoch, index = divmod(position, len(dataset))
        order = _random_order(len(dataset), seed=config.seed * SEED_STRIDE + epoch)
        rows.append(dataset[order[index]])
    return rows


@functools.lru_cache(maxsize=2)
def _random_order(count: int, seed: int) -> list[int]:
    """Return the indices 0 to count - 1 in an order that depends on the seed alone."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
