"""The averages: against literal loops in value and gradient, and by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.objective import LOSS_TYPES, aggregate
from tests.support import oracles
from tests.support.agreement import assert_agree, draw, many, ragged_mask, seeds

shapes = st.tuples(st.integers(1, 4), st.integers(1, 4))
loss_types = st.sampled_from(oracles.LOSS_TYPES)


@many
@given(shapes, seeds, loss_types, st.sampled_from([None, 1, 7.0]))
def test_aggregate_is_the_loops(shape, seed, loss_type, num_items):
    mask = ragged_mask(*shape, seed)
    assert_agree(
        lambda v: aggregate(v, mask, loss_type, 6, num_items),
        lambda v: oracles.aggregate(v, mask, loss_type, 6, num_items),
        draw(*shape, seed=seed),
    )


def test_aggregate_by_hand():
    values = torch.tensor([[1.0, 3.0, 9.0], [6.0, 9.0, 9.0], [9.0, 9.0, 9.0]]).double()
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]]).bool()
    want = {
        "grpo": (2 + 6 + 0) / 3, "sapo": 8 / 3, "luspo": 10 / 3, "dr_grpo": 10 / 15, "bnpo": 10 / 3,
        "dapo": 10 / 20, "cispo": 10 / 20, "vespo": 10 / 20,
    }  # fmt: skip
    for name in LOSS_TYPES:
        assert aggregate(values, mask, name, 5, 20).item() == pytest.approx(want[name], rel=1e-12), name
    for name in ("dapo", "cispo", "vespo"):
        assert aggregate(values, mask, name).item() == pytest.approx(10 / 3)
        for items in (20.0, torch.tensor(20), torch.tensor(20.0)):
            assert aggregate(values, mask, name, num_items=items).item() == pytest.approx(0.5)
