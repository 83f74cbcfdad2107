"""What is counted as alive: storages, once each, for as long as something can still read them."""

import torch

from tests.support.peak import Lives, peak_of_lives


def ones():
    return torch.ones(1000)  # 4000 bytes


def test_a_tensor_counts_from_the_operation_that_makes_it_until_nothing_refers_to_it():
    with Lives() as lives:
        x = ones()
        y = x * 2
        assert lives.now == lives.peak == 8000
        del x
        assert (lives.now, lives.peak) == (4000, 8000)
        del y
        assert (lives.now, lives.peak) == (0, 8000)


def test_views_and_operations_in_place_make_nothing():
    before = ones()
    with Lives() as lives:
        part = before.view(10, 100)[2:4].t()
        before.add_(1)
        assert lives.peak == 0
        whole = ones()
        part = whole[:2]
        del whole
        assert lives.now == 4000 and part.numel() == 2, "a view keeps all of its storage"


def test_gradients_are_added_up_in_place_as_without_anybody_looking_on():
    weight = ones().requires_grad_()
    (weight * 2).sum().backward()
    assert peak_of_lives(lambda: (weight * 2).sum().backward()) == 4008, "the new gradient; the sum, and its own"
    assert weight.grad.eq(4).all()


def test_the_exponentials_inside_a_logarithm_of_a_sum_count():
    assert peak_of_lives(lambda: torch.ones(10, 1000).logsumexp(-1)) == 2 * 40_000 + 40
