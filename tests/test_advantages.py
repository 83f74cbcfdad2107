"""Advantages: against literal loops, and the properties that make them advantages."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.advantages import (
    best_of_group,
    group_advantages,
    process_advantages,
    return_to_go_advantages,
    rloo_advantages,
)
from tests.support import oracles
from tests.support.agreement import assert_agree, assert_near, draw, few, many, seeds

groups = st.tuples(st.integers(1, 4), st.integers(2, 5))
scales = st.sampled_from(["group", "batch", "none"])
# Repeated, these leave a residue in `r - r.mean()` in at least one precision and group size.
nasty = [0.1, 1 / 3, 0.7, -0.3, 1e6 + 0.1, 1e-8, 1e8 / 3, math.pi, 0.0]

OF_GROUPS = {
    "group": group_advantages,
    "group, population": lambda r: group_advantages(r, ddof=0),
    "batch": lambda r: group_advantages(r, scale="batch"),
    "none": lambda r: group_advantages(r, scale="none"),
    "rloo": rloo_advantages,
    "best": best_of_group,
    "process": lambda r: process_advantages(r[..., None], torch.ones_like(r[..., None], dtype=torch.bool))[..., 0],
    "return to go": lambda r: return_to_go_advantages(r[..., None], 1.0)[..., 0],
}


def mixed_rewards(P, G, seed):
    """Drawn rewards; the first group equal throughout when there is more than one."""
    rewards = draw(P, G, seed=seed)
    if P > 1:
        rewards[0] = rewards[0, 0]
    return rewards


@many
@given(groups, seeds, scales, st.sampled_from([0, 1]), st.sampled_from([1e-8, 1e-4, 0.5]))
def test_group_advantages_are_the_loops(shape, seed, scale, ddof, eps):
    assert_near(
        group_advantages(mixed_rewards(*shape, seed), scale, ddof, eps),
        oracles.group_advantages(mixed_rewards(*shape, seed), scale, ddof, eps),
    )
    assert_agree(
        lambda r: group_advantages(r, scale, ddof, eps),
        lambda r: oracles.group_advantages(r, scale, ddof, eps),
        draw(*shape, seed=seed),
        tolerance=1e-10,
    )


@many
@given(groups, seeds)
def test_rloo_and_best_are_the_loops(shape, seed):
    assert_agree(rloo_advantages, oracles.rloo_advantages, draw(*shape, seed=seed))
    assert_agree(best_of_group, oracles.best_of_group, draw(*shape, seed=seed))
    for rewards in (mixed_rewards(*shape, seed), mixed_rewards(*shape, seed).round()):  # rounded: ties
        assert_near(rloo_advantages(rewards), oracles.rloo_advantages(rewards))
        assert_near(best_of_group(rewards), oracles.best_of_group(rewards))


def test_by_hand():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [4.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    third, batch_std = math.sqrt(1 / 3), oracles.std_of([1, 0, 0, 1, 4, 0, 0, 0], 1).item()
    eps = 1e-4
    centred = torch.tensor([[0.5, -0.5, -0.5, 0.5], [3.0, -1.0, -1.0, -1.0]], dtype=torch.float64)
    assert_near(group_advantages(rewards, "none"), centred)
    assert_near(group_advantages(rewards), centred / torch.tensor([[third + eps], [2.0 + eps]], dtype=torch.float64))
    assert_near(group_advantages(rewards, ddof=0)[0], torch.tensor([1.0, -1.0, -1.0, 1.0]).double() * 0.5 / (0.5 + eps))
    assert_near(group_advantages(rewards, "batch"), centred / (batch_std + eps))
    assert_near(rloo_advantages(rewards), centred * 4 / 3)
    assert best_of_group(rewards).tolist() == [[1.0, 0.0, 0.0, 1.0], [4.0, 0.0, 0.0, 0.0]]
    assert best_of_group(-rewards).tolist() == [[0.0] * 4, [0.0] * 4]


def test_two_completions_say_only_which_was_better():
    rewards = torch.tensor([[0.0, 1.0], [5.0, 2.0]], dtype=torch.float64)
    signs = torch.tensor([[-1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    assert_near(group_advantages(rewards, eps=1e-12), signs / math.sqrt(2), 1e-10)
    assert_near(group_advantages(rewards, ddof=0, eps=1e-12), signs, 1e-10)


# --- equal rewards --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OF_GROUPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("G", [2, 3, 7, 8, 64])
def test_equal_rewards_give_exactly_zero(name, dtype, G):
    for value in nasty:
        rewards = torch.full((2, G), value, dtype=dtype)
        rewards[1, 0] = value + abs(value) + 1  # a neighbour with spread changes nothing
        advantages = OF_GROUPS[name](rewards)
        assert advantages.dtype is dtype
        assert (advantages[0] == 0).all(), f"{value} repeated {G} times: {advantages[0].tolist()}"
        assert (advantages[1] != 0).any() and advantages.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", nasty)
def test_equal_rewards_everywhere_give_exactly_zero(value, dtype):
    rewards = torch.full((3, 5), value, dtype=dtype)
    for name, function in OF_GROUPS.items():
        assert (function(rewards) == 0).all(), name
    steps = torch.full((2, 3, 7), value, dtype=dtype)
    mask = torch.rand(steps.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    assert (process_advantages(steps, mask) == 0).all()
    last = torch.where(torch.arange(7) == 6, steps, 0)
    assert (return_to_go_advantages(last, 0.9) == 0).all()


# --- properties -----------------------------------------------------------------------------------------------


@few
@given(groups, seeds, scales, st.sampled_from([-1024.0, 0.5, 2.0**20]))
def test_a_constant_added_to_a_prompt_changes_nothing(shape, seed, scale, shift):
    rewards = (8 * draw(*shape, seed=seed)).round() / 8  # binary fractions: the shift itself is exact
    moved = rewards.clone()
    moved[-1] += shift
    assert torch.equal(rloo_advantages(rewards), rloo_advantages(moved))
    if scale != "batch":
        assert torch.equal(group_advantages(rewards, scale), group_advantages(moved, scale))
    assert torch.equal(group_advantages(rewards, scale), group_advantages(rewards + shift, scale))


@few
@given(groups, seeds, st.sampled_from([0.01, 3.0, 1e4]))
def test_a_factor_cancels_where_a_spread_divides(shape, seed, factor):
    rewards, eps = draw(*shape, seed=seed), 1e-4
    for scale in ("group", "batch"):
        assert_near(
            group_advantages(rewards * factor, scale, eps=eps * factor), group_advantages(rewards, scale, eps=eps)
        )
        assert_near(group_advantages(-rewards, scale), -group_advantages(rewards, scale))
    assert_near(group_advantages(rewards * factor, "none"), factor * group_advantages(rewards, "none"))
    assert_near(rloo_advantages(rewards * factor), factor * rloo_advantages(rewards))


@few
@given(groups, seeds, scales)
def test_centred_and_ordered(shape, seed, scale):
    rewards = draw(*shape, seed=seed)
    advantages = group_advantages(rewards, scale)
    assert_near(advantages.sum(1), torch.zeros(shape[0]).double())
    assert torch.equal(advantages.argsort(1), rewards.argsort(1))
    assert_near(rloo_advantages(rewards), group_advantages(rewards, "none") * shape[1] / (shape[1] - 1))


@few
@given(groups, seeds, st.sampled_from(sorted(OF_GROUPS)))
def test_the_order_of_a_group_does_not_matter(shape, seed, name):
    rewards = draw(*shape, seed=seed)
    order = torch.randperm(shape[1], generator=torch.Generator().manual_seed(seed))
    assert_near(OF_GROUPS[name](rewards[:, order]), OF_GROUPS[name](rewards)[:, order])


@pytest.mark.parametrize("name", [name for name in OF_GROUPS if name != "batch"])
def test_prompts_do_not_see_each_other(name):
    rewards = draw(3, 4, seed=0)
    changed = rewards.clone()
    changed[1:] = 100 * draw(2, 4, seed=1)
    assert torch.equal(OF_GROUPS[name](rewards)[0], OF_GROUPS[name](changed)[0])
    assert_near(OF_GROUPS[name](rewards), torch.cat([OF_GROUPS[name](row[None]) for row in rewards]))


def test_batch_scale_sees_all_prompts_through_one_divisor():
    rewards = draw(3, 4, seed=0) * torch.tensor([[0.1], [1.0], [10.0]])
    quotient = group_advantages(rewards, "none") / group_advantages(rewards, "batch")
    assert_near(quotient, torch.full_like(quotient, rewards.std().item() + 1e-4), 1e-10)


# --- wrong input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rewards_that_are_not_finite(bad):
    rewards = torch.tensor([[0.0, 1.0, bad], [0.0, 1.0, 2.0]])
    for name, function in OF_GROUPS.items():
        with pytest.raises(ValueError, match="rewards"):
            function(rewards)
            pytest.fail(name)


@pytest.mark.parametrize(
    ("name", "values"), [("scale", ["sequence", True]), ("ddof", [2, -1]), ("eps", [0.0, -1e-4, math.nan])]
)
def test_bad_settings_are_named(name, values):
    for value in values:
        with pytest.raises((ValueError, TypeError), match=name):
            group_advantages(torch.zeros(2, 3), **{name: value})


def test_groups_too_small_for_the_question():
    single = torch.tensor([[1.0], [2.0]])
    for call in (
        lambda: group_advantages(single),
        lambda: rloo_advantages(single),
        lambda: group_advantages(single[:1], "batch"),
        lambda: return_to_go_advantages(single[..., None], 1.0),
    ):
        with pytest.raises(ValueError, match=r"G = 1|1 element"):
            call()
    assert (group_advantages(single, ddof=0) == 0).all() and (group_advantages(single, "none") == 0).all()
