"""pass@k is the share of all draws that contain a right completion, and Wilson's interval solves his equation."""

import itertools
import math

import pytest

from grpo_lab.evaluate import pass_at_k, wilson_interval


def test_pass_at_k_is_the_share_of_all_draws_that_hold_a_right_one():
    for n in range(1, 8):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-12)


def test_wilson_interval_ends_solve_wilsons_equation():
    """Wilson's definition: p with (right/n - p)^2 = z^2 p (1 - p) / n."""
    for right, n in ((0, 5), (1, 1), (3, 10), (50, 100), (999, 1000), (7, 7)):
        low, high = wilson_interval(right / n, n)
        for end in (low, high):
            assert (right / n - end) ** 2 == pytest.approx(1.959964**2 * end * (1 - end) / n, abs=1e-12)
        assert 0 <= low <= right / n <= high <= 1 and low < high


def test_pass_at_k_and_wilson_interval_refuse_impossible_counts():
    for n, c, k in ((4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5)):
        with pytest.raises(ValueError, match=f"n, c, k are {n}, {c}, {k}; expected"):
            pass_at_k(n, c, k)
    for share, n in ((0.5, 0), (-0.1, 5), (1.1, 5), (math.nan, 5)):
        with pytest.raises(ValueError, match=f"share is {share} and n is {n}; expected"):
            wilson_interval(share, n)
