"""An experience cut into rows: nothing is lost, nothing is mixed up, and the prompts are shared, not copied."""

from dataclasses import fields, replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.worlds import ragged_experience

LENGTHS = st.lists(st.integers(1, 24), min_size=2, max_size=12)
BY_ROW = ("prompt_of_row", "completion_ids", "mask", "logp", "entropy", "truncated")


def numbered(lengths):
    """An experience in which every number says which row it belongs to."""
    whole = ragged_experience(lengths)
    number = torch.arange(float(len(lengths)))
    table = number[:, None] + torch.rand(whole.mask.shape, generator=torch.Generator().manual_seed(1))
    rollout = replace(whole.rollout, logp=table, entropy=2 * table)
    logps = {"old_logp": 3 * table, "ref_logp": 4 * table}
    return replace(whole, rollout=rollout, rewards=number, rewards_per_func=table[:, :2], **logps)


def assert_rows(part, whole, rows):
    """The part holds these rows of the whole, each with all that belongs to it, and the very prompts of the whole."""
    assert len(part) == len(rows)
    for name in (field.name for field in fields(whole) if field.name != "rollout"):
        assert torch.equal(getattr(part, name), getattr(whole, name)[rows]), name
    for name in BY_ROW:
        assert torch.equal(getattr(part.rollout, name), getattr(whole.rollout, name)[rows]), name
    assert part.rollout.texts == [f"row {row}" for row in rows]
    assert part.rollout.prompt_ids is whole.rollout.prompt_ids and part.rollout.prompt_mask is whole.rollout.prompt_mask


@given(LENGTHS, st.data())
def test_chosen_rows_keep_what_belongs_to_them(lengths, data):
    whole = numbered(lengths)
    rows = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=12))
    assert_rows(whole[torch.tensor(rows, dtype=torch.long)], whole, rows)
    chosen = torch.isin(torch.arange(len(lengths)), torch.tensor(rows, dtype=torch.long))
    assert_rows(whole[chosen], whole, sorted(set(rows)))


@given(LENGTHS, st.integers(1, 13))
def test_cut_into_parts_every_row_comes_once_and_in_order(lengths, size):
    whole = numbered(lengths)
    rows = torch.arange(len(lengths)).split(size)
    for part, want in zip(whole.split(size), rows, strict=True):
        assert_rows(part, whole, want.tolist())
