"""The rows of a data set: whether they can be trained on, and which of them a step takes."""

import functools

import torch

from grpo_lab.tasks import Rows


def check_dataset(dataset: Rows) -> None:
    """Every row is a dict with a "prompt", and all have the same columns."""
    if not isinstance(dataset, Rows):
        raise TypeError(f"dataset is a {type(dataset).__name__}; expected a list of dicts or a datasets.Dataset")
    if len(dataset) == 0:
        raise ValueError("dataset is empty; expected at least one row")
    columns = None
    for index in range(len(dataset)):
        row = dataset[index]
        if not isinstance(row, dict):
            raise TypeError(f"dataset row {index} is {row!r:.60}; expected a dict with a 'prompt'")
        if "prompt" not in row:
            raise ValueError(f"dataset row {index} has the columns {sorted(row)}; expected 'prompt' among them")
        columns = columns or sorted(row)
        if sorted(row) != columns:
            raise ValueError(f"dataset row {index} has the columns {sorted(row)}; expected those of row 0, {columns}")


def rows_of_step(dataset: Rows, step: int, count: int, seed: int) -> list[dict]:
    """The prompts of a step: the data set in a new random order every epoch, computed from seed and epoch alone."""
    picked = []
    for position in range(step * count, (step + 1) * count):
        epoch, place = divmod(position, len(dataset))
        picked.append(dataset[_order(len(dataset), seed * 1_000_003 + epoch)[place]])
    return picked


@functools.lru_cache(maxsize=2)
def _order(count: int, seed: int) -> list[int]:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
