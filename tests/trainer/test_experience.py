"""An experience: its rows with a gradient, and selections of rows."""

import torch

from tests.support.small_policy import ragged_experience


def test_rows_have_a_gradient_by_their_advantage_and_their_tokens():
    experience = ragged_experience([2, 0, 3, 1], inactive=(2,))
    assert experience.has_gradient(every_row=False).tolist() == [True, False, False, True]
    assert experience.has_gradient(every_row=True).tolist() == [True, False, True, True]


def test_a_selection_of_rows_selects_every_field():
    experience = ragged_experience([2, 1, 3, 1])
    rows = torch.tensor([2, 0])
    assert torch.equal(experience[rows].advantages, experience.advantages[rows])
    assert experience[rows].rollout.texts == ["row 2", "row 0"]
    assert [len(part) for part in experience.split(3)] == [3, 1]
