"""Selecting rows of a `Rollout`."""

from dataclasses import dataclass, fields

import pytest
import torch
from torch import Tensor

from grpo_lab.rollout.rollout import PROMPT_FIELDS, Episode, Rollout


@dataclass(frozen=True, kw_only=True)
class ExtendedRollout(Rollout):
    """A rollout with fields that `Rollout` does not name."""

    weights: Tensor
    labels: list[str]


def extended_rollout(episodes: list[Episode] | None = None) -> ExtendedRollout:
    tokens = torch.arange(12).view(4, 3)
    flags = tokens % 5 > 0
    return ExtendedRollout(
        prompt_ids=torch.arange(4).view(2, 2),
        prompt_mask=torch.ones(2, 2, dtype=torch.bool),
        prompt_of_row=torch.tensor([0, 0, 1, 1]),
        completion_ids=tokens,
        mask=flags,
        logp=tokens / 10,
        entropy=tokens / 20,
        truncated=torch.tensor([False, True, False, True]),
        texts=["a", "b", "c", "d"],
        policy_mask=flags,
        turn_of_token=tokens % 3,
        episodes=episodes,
        group_of_row=torch.tensor([0, 0, 1, 1]),
        weights=torch.arange(4.0),
        labels=["first", "second", "third", "fourth"],
    )


ROWS = [(slice(1, 3), [1, 2]), (torch.tensor([3, 0]), [3, 0]), (torch.tensor([True, False, False, True]), [0, 3])]


@pytest.mark.parametrize(("rows", "indices"), ROWS)
def test_selection_takes_the_rows_of_every_field_except_those_of_the_prompts(rows, indices):
    """A field that is added later is selected, too; or else it is named in `PROMPT_FIELDS`."""
    rollout = extended_rollout([Episode(num_calls=row) for row in range(4)])
    selected = rollout[rows]
    for field in fields(rollout):
        values, of_rows = getattr(rollout, field.name), getattr(selected, field.name)
        if field.name in PROMPT_FIELDS:
            assert of_rows is values, field.name
        elif isinstance(values, list):
            assert of_rows == [values[index] for index in indices], field.name
        else:
            assert torch.equal(of_rows, values[indices]), field.name


def test_selection_without_an_environment_has_no_episodes():
    assert extended_rollout()[:2].episodes is None
