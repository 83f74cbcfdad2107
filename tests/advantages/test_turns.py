"""Advantages of turns: compared with literal loops, and tested for what each is compared with."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.advantages import (
    gigpo_advantages,
    group_advantages,
    rloo_advantages,
    trajectory_advantages,
    turn_advantages,
)
from grpo_lab.toys.guess.exact import TURN_ADVANTAGES
from tests.support import oracles
from tests.support.agreement import (
    HARD_TO_AVERAGE,
    assert_agree,
    assert_near,
    draw,
    draw_integers,
    few_examples,
    many_examples,
    ragged_mask,
    seeds,
)

worlds = st.tuples(st.integers(1, 2), st.integers(2, 3), st.integers(1, 4))


def episodes(shape, seed, states=3):
    """Return rewards (NaN where there is no turn), the mask of turns, and states, for episodes of different lengths."""
    P, G, K = shape
    turn_mask = torch.stack([ragged_mask(G, K, seed + p) for p in range(P)])
    return draw(*shape, seed=seed).masked_fill(~turn_mask, math.nan), turn_mask, draw_integers(shape, states, seed)


@many_examples
@given(worlds, seeds, st.sampled_from([0.0, 0.5, 1.0]))
def test_advantages_of_turns_equal_those_of_literal_loops(shape, seed, gamma):
    rewards, mask, states = episodes(shape, seed)
    assert_agree(*(lambda r, f=f: f(r, mask) for f in (trajectory_advantages, oracles.trajectory_advantages)), rewards)
    for state in (states, None):
        functions = (turn_advantages, oracles.turn_advantages)
        assert_agree(*(lambda r, f=f, s=state: f(r, mask, s, gamma) for f in functions), rewards)


@many_examples
@given(
    worlds,
    seeds,
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from(["none", "group"]),
)
def test_gigpo_advantages_equal_those_of_literal_loops(shape, seed, gamma, omega, scale):
    rewards, *turns = episodes(shape, seed)
    functions = (lambda r, f=f: f(r, *turns, gamma, omega, scale) for f in (gigpo_advantages, oracles.gigpo_advantages))
    if scale == "none":
        assert_agree(*functions, rewards, tolerance=1e-9)
    else:  # a standard deviation of zero has no gradient
        assert_near(*(f(rewards) for f in functions), 1e-9)


@pytest.mark.parametrize("name", TURN_ADVANTAGES)
def test_turns_of_equal_rewards_or_an_empty_mask_have_advantages_of_exactly_zero(name):
    """All episodes end with the same reward after different numbers of turns; every state occurs in two of them."""
    mask = torch.arange(4) < torch.tensor([[[4], [3], [4], [3], [2], [2]]])
    states = torch.arange(4).expand_as(mask)
    for value in HARD_TO_AVERAGE:
        rewards = torch.zeros(1, 6, 4).masked_fill(torch.arange(4) == mask.sum(-1, keepdim=True) - 1, value)
        assert (TURN_ADVANTAGES[name](rewards, mask, states) == 0).all(), value
    nothing = TURN_ADVANTAGES[name](
        torch.full((2, 3, 4), math.nan), torch.zeros(2, 3, 4, dtype=torch.bool), states[:, :3].expand(2, 3, 4)
    )
    assert (nothing == 0).all()


@few_examples
@given(worlds, seeds)
def test_episodes_of_one_turn_have_leave_one_out_advantages_with_every_turn_advantage(shape, seed):
    P, G, _ = shape
    rewards = draw(P, G, seed=seed)
    turn, mask = rewards[..., None], torch.ones(P, G, 1, dtype=torch.bool)
    for name in ("trajectory", "turn", "state"):
        advantages = TURN_ADVANTAGES[name](turn, mask, torch.zeros_like(mask, dtype=torch.long))
        assert_near(advantages[..., 0], rloo_advantages(rewards))
    assert_near(gigpo_advantages(turn, mask, omega=0.0)[..., 0], group_advantages(rewards, "none"))
    assert_near(gigpo_advantages(turn, mask)[..., 0], 2 * group_advantages(rewards, "none"))


def test_a_turn_alone_in_its_state_has_no_baseline_in_turn_advantages_and_no_state_advantage_in_gigpo():
    rewards, mask = torch.tensor([[[0.0, 1.0], [0.0, 0.0]]]), torch.ones(1, 2, 2, dtype=torch.bool)
    states = torch.tensor([[[0, 1], [0, 2]]])
    assert turn_advantages(rewards, mask, states).tolist() == [[[1.0, 1.0], [-1.0, 0.0]]]
    assert (
        gigpo_advantages(rewards, mask, states, omega=1.0) - gigpo_advantages(rewards, mask, states, omega=0.0)
    ).tolist() == [[[0.5, 0.0], [-0.5, 0.0]]]


def test_the_baseline_of_a_turn_leaves_out_the_whole_episode():
    """The first episode is in state 0 twice; its two turns are not compared with each other."""
    rewards, mask = torch.tensor([[[0.0, 1.0], [0.0, 0.0]]]), torch.ones(1, 2, 2, dtype=torch.bool)
    states = torch.zeros(1, 2, 2, dtype=torch.long)
    assert turn_advantages(rewards, mask, states).tolist() == [[[1.0, 1.0], [-1.0, -1.0]]]


@pytest.mark.parametrize("name", TURN_ADVANTAGES)
def test_advantages_of_turns_refuse_tensors_of_wrong_shape_or_type(name, no_checker):
    rewards, mask = torch.zeros(1, 2, 3), torch.ones(1, 2, 3, dtype=torch.bool)
    states = torch.zeros(1, 2, 3, dtype=torch.long)
    for wrong in (
        (rewards[:, :1], mask[:, :1], states[:, :1]),
        (rewards, mask[..., :2], states),
        (rewards, mask.long(), states),
    ):
        with pytest.raises(ValueError, match="turn_"):
            TURN_ADVANTAGES[name](*wrong)
    with pytest.raises(ValueError, match="turn_rewards holds NaN"):
        TURN_ADVANTAGES[name](rewards / 0, mask, states)
