"""The random state of torch after a context is the one before it, also after an error."""

import pytest
import torch

from grpo_lab.base.random_state import restored_random_state


@pytest.mark.parametrize("seed", [None, 3])
def test_the_numbers_drawn_inside_change_nothing_outside(seed):
    torch.manual_seed(1)
    expected = torch.rand(4)
    torch.manual_seed(1)
    with pytest.raises(ZeroDivisionError), restored_random_state(seed):
        inside = torch.rand(4)
        raise ZeroDivisionError
    torch.testing.assert_close(torch.rand(4), expected, rtol=0, atol=0)
    torch.manual_seed(1 if seed is None else seed)
    torch.testing.assert_close(inside, torch.rand(4), rtol=0, atol=0)
