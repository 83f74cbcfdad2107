"""An experience: its rows with a gradient, and old names of its fields and methods."""

import pytest
import torch

from tests.support.small_policy import make_config, ragged_experience


def test_rows_have_a_gradient_by_their_advantage_and_their_tokens():
    experience = ragged_experience([2, 0, 3, 1], inactive=(2,))
    assert experience.rows_with_gradient(False).tolist() == [True, False, False, True]
    assert experience.rows_with_gradient(True).tolist() == [True, False, True, True]


def test_a_selection_of_rows_selects_every_field():
    experience = ragged_experience([2, 1, 3, 1])
    rows = torch.tensor([2, 0])
    assert torch.equal(experience[rows].advantages, experience.advantages[rows])
    assert experience[rows].rollout.texts == ["row 2", "row 0"]
    assert [len(part) for part in experience.split(3)] == [3, 1]


def test_the_settings_of_the_run_still_say_whether_every_row_has_a_gradient():
    experience = ragged_experience([2, 0], inactive=(0,))
    for config, expected in ((make_config(beta=0.1), [True, False]), (make_config(), [False, False])):
        with pytest.warns(DeprecationWarning, match=r"^rows_with_gradient.config. is called .*needs_every_row. now$"):
            assert experience.rows_with_gradient(config).tolist() == expected


def test_the_old_names_of_fields_work_and_warn():
    experience = ragged_experience([2, 1])
    with pytest.warns(DeprecationWarning, match="^experience.mask is called loss_mask now$"):
        assert experience.mask is experience.loss_mask
    with pytest.warns(DeprecationWarning, match="^rollout.turn is called turn_of_token now$"):
        assert experience.rollout.turn is experience.rollout.turn_of_token
    with pytest.warns(DeprecationWarning, match="^rollout.group is called group_of_row now$"):
        assert experience.rollout.group is experience.rollout.group_of_row
