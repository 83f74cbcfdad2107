"""The random state of torch after a context is the one before it, also after an error."""

import pytest
import torch

from grpo_lab.base.random_state import random_state, restored_random_state, set_random_state


@pytest.mark.parametrize("seed", [None, 3])
def test_restored_random_state_keeps_draws_inside_the_block_from_changing_draws_after_it(seed):
    torch.manual_seed(1)
    expected = torch.rand(4)
    torch.manual_seed(1)
    with pytest.raises(ZeroDivisionError), restored_random_state(seed):
        inside = torch.rand(4)
        raise ZeroDivisionError
    torch.testing.assert_close(torch.rand(4), expected, rtol=0, atol=0)
    torch.manual_seed(1 if seed is None else seed)
    torch.testing.assert_close(inside, torch.rand(4), rtol=0, atol=0)


def test_a_random_state_that_is_set_again_gives_the_same_numbers():
    cpu = torch.device("cpu")
    state = random_state(cpu)
    expected = torch.rand(4)
    assert not torch.equal(state, random_state(cpu)), "a draw changes the state, and not the copy of it"
    set_random_state(cpu, state)
    torch.testing.assert_close(torch.rand(4), expected, rtol=0, atol=0)
