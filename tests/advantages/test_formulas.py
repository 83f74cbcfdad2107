"""Advantages of completions: compared with literal loops, and tested for the properties of an advantage."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.advantages import best_of_group, group_advantages, process_advantages, return_to_go, rloo_advantages
from tests.support import oracles
from tests.support.agreement import HARD_TO_AVERAGE, assert_agree, assert_near, draw, few_examples, many_examples, seeds

groups = st.tuples(st.integers(1, 4), st.integers(2, 5))
scales = st.sampled_from(["group", "batch", "none"])

ESTIMATORS = {
    "group": group_advantages,
    "group, population": lambda r: group_advantages(r, ddof=0),
    "batch": lambda r: group_advantages(r, scale="batch"),
    "none": lambda r: group_advantages(r, scale="none"),
    "rloo": rloo_advantages,
    "best": best_of_group,
    "process": lambda r: process_advantages(r[..., None], torch.ones_like(r[..., None], dtype=torch.bool))[..., 0],
}


def mixed_rewards(P, G, seed):
    """Return random rewards; all rewards of the first group are equal if there are several groups."""
    rewards = draw(P, G, seed=seed)
    if P > 1:
        rewards[0] = rewards[0, 0]
    return rewards


@many_examples
@given(groups, seeds, scales, st.sampled_from([0, 1]), st.sampled_from([1e-8, 1e-4, 0.5]))
def test_group_advantages_equal_those_of_literal_loops(shape, seed, scale, ddof, eps):
    ours, oracle = (lambda r, f=f: f(r, scale, ddof, eps) for f in (group_advantages, oracles.group_advantages))
    mixed = mixed_rewards(*shape, seed)
    assert_near(ours(mixed), oracle(mixed))
    assert_agree(ours, oracle, draw(*shape, seed=seed), tolerance=1e-10)


@many_examples
@given(groups, seeds)
def test_rloo_advantages_and_best_of_group_equal_those_of_literal_loops(shape, seed):
    assert_agree(rloo_advantages, oracles.rloo_advantages, draw(*shape, seed=seed))
    assert_agree(best_of_group, oracles.best_of_group, draw(*shape, seed=seed))
    for rewards in (mixed_rewards(*shape, seed), mixed_rewards(*shape, seed).round()):  # rounded: ties
        assert_near(rloo_advantages(rewards), oracles.rloo_advantages(rewards))
        assert_near(best_of_group(rewards), oracles.best_of_group(rewards))


# --- equal rewards --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_equal_rewards_give_advantages_of_exactly_zero(name, dtype):
    for value, G in itertools.product(HARD_TO_AVERAGE, (2, 3, 5, 7, 8, 64)):
        rewards = torch.full((2, G), value, dtype=dtype)
        assert (ESTIMATORS[name](rewards) == 0).all(), f"{value} repeated {2 * G} times"
        rewards[1, 0] = value + abs(value) + 1  # a neighbour with spread changes nothing
        advantages = ESTIMATORS[name](rewards)
        assert advantages.dtype is dtype
        assert (advantages[0] == 0).all(), f"{value} repeated {G} times: {advantages[0].tolist()}"
        assert (advantages[1] != 0).any() and advantages.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_step_rewards_give_advantages_of_exactly_zero(dtype):
    for value in HARD_TO_AVERAGE:
        steps = torch.full((2, 3, 7), value, dtype=dtype)
        mask = torch.rand(steps.shape, generator=torch.Generator().manual_seed(0)) < 0.5
        assert (process_advantages(steps, mask) == 0).all()


# --- properties -----------------------------------------------------------------------------------------------


@few_examples
@given(groups, seeds, scales, st.sampled_from([-1024.0, 0.5, 2.0**20]))
def test_a_constant_added_to_the_rewards_of_a_prompt_changes_no_advantage(shape, seed, scale, shift):
    rewards = (8 * draw(*shape, seed=seed)).round() / 8  # binary fractions: the shift itself is exact
    shifted = rewards.clone()
    shifted[-1] += shift
    assert torch.equal(rloo_advantages(rewards), rloo_advantages(shifted))
    if scale != "batch":
        assert torch.equal(group_advantages(rewards, scale), group_advantages(shifted, scale))
    assert torch.equal(group_advantages(rewards, scale), group_advantages(rewards + shift, scale))


@few_examples
@given(groups, seeds, scales)
def test_group_advantages_are_centred_and_ordered_like_rewards(shape, seed, scale):
    rewards = draw(*shape, seed=seed)
    advantages = group_advantages(rewards, scale)
    assert_near(advantages.sum(1), torch.zeros(shape[0]).double())
    assert torch.equal(advantages.argsort(1), rewards.argsort(1))
    assert_near(rloo_advantages(rewards), group_advantages(rewards, "none") * shape[1] / (shape[1] - 1))


def test_advantages_of_a_prompt_do_not_depend_on_other_prompts():
    rewards = draw(3, 4, seed=0)
    changed = torch.cat([rewards[:1], 100 * draw(2, 4, seed=1)])
    for name in set(ESTIMATORS) - {"batch"}:
        assert torch.equal(ESTIMATORS[name](rewards)[0], ESTIMATORS[name](changed)[0]), name
        assert_near(ESTIMATORS[name](rewards), torch.cat([ESTIMATORS[name](row[None]) for row in rewards]))


# --- of steps -------------------------------------------------------------------------------------------------

worlds = st.tuples(st.integers(1, 2), st.integers(2, 3), st.integers(1, 4))


@many_examples
@given(worlds, seeds, st.sampled_from([1e-4, 0.3]), st.sampled_from([0.2, 0.6, 1.0]))
def test_process_advantages_equal_those_of_literal_loops(shape, seed, eps, share):
    rewards = draw(*shape, seed=seed)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share
    assert_near(process_advantages(rewards, mask, eps), oracles.process_advantages(rewards, mask, eps))


@few_examples
@given(worlds, seeds, st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_return_to_go_equals_that_of_a_literal_loop(shape, seed, gamma):
    rewards = draw(*shape, seed=seed)
    assert_agree(lambda r: return_to_go(r, gamma), lambda r: oracles.return_to_go(r, gamma), rewards)


@few_examples
@given(worlds, seeds)
def test_process_advantages_of_one_step_are_group_advantages(shape, seed):
    P, G, T = shape
    outcome = draw(P, G, seed=seed)
    last = torch.randint(0, T, (P, G, 1), generator=torch.Generator().manual_seed(seed))
    mask = torch.arange(T) == last
    advantages = process_advantages(outcome[..., None].expand(P, G, T), mask)
    expected = torch.where(torch.arange(T) <= last, group_advantages(outcome)[..., None], 0)
    assert_near(advantages, expected)


def test_process_advantages_ignore_rewards_where_no_step_ends():
    rewards, mask = draw(2, 3, 5, seed=0), torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(1)) < 0.5
    garbage = torch.where(mask, rewards, torch.nan)
    assert torch.equal(process_advantages(garbage, mask), process_advantages(rewards, mask))
    assert (process_advantages(garbage, torch.zeros_like(mask)) == 0).all()


def test_integer_rewards_have_the_advantages_of_the_same_floats(no_checker):
    rewards = torch.tensor([[3, 0, 1], [1, 1, 1]])
    for name, function in ESTIMATORS.items():
        for dtype in (torch.int64, torch.uint8, torch.bool):
            whole = rewards.to(dtype)
            assert_near(function(whole), function(whole.float())), name
    assert group_advantages(rewards).dtype is torch.get_default_dtype()
    assert_near(return_to_go(rewards[..., None], 0.5), rewards[..., None].float())


def test_step_rewards_that_carry_a_gradient_pass_it_on():
    mask = draw(2, 3, 4, seed=1) > -0.5
    ours, oracle = (lambda r, f=f: f(r, mask) for f in (process_advantages, oracles.process_advantages))
    assert_agree(ours, oracle, draw(2, 3, 4, seed=0), tolerance=1e-9)


def test_advantages_refuse_wrong_arguments_by_name(no_checker):
    rewards, single = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([[1.0], [2.0]])
    steps, mask = rewards[..., None], torch.ones(1, 3, 1, dtype=torch.bool)
    for wrong in ({"scale": "sequence"}, {"ddof": 2}, {"ddof": -1}, {"eps": 0.0}, {"eps": math.nan}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            group_advantages(rewards, **wrong)
    with pytest.raises(ValueError, match="eps"):
        process_advantages(steps, mask, eps=0.0)
    for gamma in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="gamma"):
            return_to_go(steps, gamma)
    for function in ESTIMATORS.values():
        for bad in (math.nan, math.inf, -math.inf):
            with pytest.raises(ValueError, match="rewards holds NaN or infinite values"):
                function(torch.tensor([[0.0, 1.0, bad], [0.0, 1.0, 2.0]]))
    for name in ("group", "rloo"):
        with pytest.raises(ValueError, match=r"^rewards has shape \(2, 1\); expected \(P, G\), where P = 2 and G > 1"):
            ESTIMATORS[name](single)
    with pytest.raises(ValueError, match=r"^rewards has shape \(1, 1\); expected \(P, G\), where P = 1 and G > 1"):
        group_advantages(single[:1], "batch")
    assert (group_advantages(single, ddof=0) == 0).all() and (group_advantages(single, "none") == 0).all()
