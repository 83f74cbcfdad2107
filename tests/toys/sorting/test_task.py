"""Tests of the sorting task: the prompts are complete and split by multisets, and the rewards equal literal loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.policy_gradient import enumerate_sequences
from grpo_lab.toys.sorting import ascending_pairs, exact_reward, make_prompts, repaired_reward, sorting_reward
from tests.support.agreement import draw_integers, many_examples, seeds


def inclusion_loop(x, y):
    return sum(any(a == b for b in y) for a in x)


def multiset_loop(x, y):
    remaining, count = list(y), 0
    for a in x:
        if a in remaining:
            remaining.remove(a)
            count += 1
    return count


def pairs_loop(y):
    return sum(y[t] <= y[t + 1] for t in range(len(y) - 1))


@many_examples
@given(st.integers(1, 5), st.integers(2, 5), st.integers(1, 6), seeds)
def test_sorting_rewards_equal_those_of_literal_loops(B, T, V, seed):
    prompts, responses = draw_integers((B, T), V, seed), draw_integers((B, T), V, seed + 1)
    x, y = prompts.tolist(), responses.tolist()
    assert ascending_pairs(responses).tolist() == [pairs_loop(y[b]) for b in range(B)]
    for reward, loop in [
        (sorting_reward, lambda b: inclusion_loop(x[b], y[b]) + pairs_loop(y[b])),
        (repaired_reward, lambda b: multiset_loop(x[b], y[b]) + pairs_loop(y[b])),
        (exact_reward, lambda b: sorted(x[b]) == y[b]),
    ]:
        rewards = reward(prompts, responses)
        assert rewards.dtype is torch.float32
        assert rewards.tolist() == [float(loop(b)) for b in range(B)]


def test_only_the_sorted_prompt_gets_the_maximum_of_the_repaired_reward():
    sequences = enumerate_sequences(4, 3)
    for prompt in sequences:
        prompts = prompt.expand_as(sequences)
        has_maximum = repaired_reward(prompts, sequences) == 5
        assert sequences[has_maximum].tolist() == [sorted(prompt.tolist())]
        assert exact_reward(prompts, sequences).tolist() == has_maximum.float().tolist()
        hacks = (sorting_reward(prompts, sequences) == 5) & ~has_maximum
        assert hacks.any() == (len(set(prompt.tolist())) < 3)  # only prompts with duplicates can be hacked


@pytest.mark.parametrize(("duplicates", "count", "different_numbers"), [("none", 60, {3}), ("only", 65, {1, 2})])
def test_prompts_are_complete_and_split_by_multisets(duplicates, count, different_numbers):
    prompts = make_prompts(numbers=5, length=3, duplicates=duplicates)
    train, held_out = ([tuple(p) for p in split.tolist()] for split in prompts[:2])
    assert prompts.numbers == 5
    assert len(set(train + held_out)) == len(train + held_out) == count
    assert {tuple(sorted(p)) for p in train}.isdisjoint(tuple(sorted(p)) for p in held_out)
    assert {len(set(p)) for p in train + held_out} == different_numbers
    multisets = {tuple(sorted(p)) for p in train + held_out}
    assert len({tuple(sorted(p)) for p in held_out}) == round(0.2 * len(multisets))


def test_sorting_rewards_and_prompts_refuse_wrong_input_by_name(no_checker):
    for reward in (sorting_reward, repaired_reward, exact_reward):
        with pytest.raises(ValueError, match=r"responses has shape \(1, 2\)"):
            reward(torch.tensor([[1, 2, 3]]), torch.tensor([[1, 2]]))
    for arguments, named in [
        ({"duplicates": "some"}, "duplicates is 'some'"),
        ({"length": 1}, "length is 1"),
        ({"numbers": 3, "length": 4}, "there are 0 multisets"),
        ({"numbers": 4, "length": 4}, "there are 1 multisets"),
    ]:
        with pytest.raises(ValueError, match=named):
            make_prompts(**arguments)
