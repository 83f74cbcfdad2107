"""Tests of the environment of the game "higher or lower": replies, histories, states, and the policy mask."""

from itertools import product

import pytest
import torch

from grpo_lab.toys.guess import GuessPolicy, GuessWorld, all_histories, episode_rewards, policy_mask, turn_states
from grpo_lab.toys.guess.exact import secret_episodes

WORLD = GuessWorld(3, 2)


def possible_secrets(world, tokens) -> list[int]:
    """List the secrets for which all replies of a history are true."""
    turns = list(zip(tokens[::2], tokens[1::2], strict=True))
    is_true = {world.higher: int.__gt__, world.higher + 1: int.__lt__}
    return [s for s in range(1, world.numbers + 1) if all(is_true[reply](s, guess) for guess, reply in turns)]


def test_the_world_says_higher_lower_and_found():
    words = WORLD.answer(torch.tensor([3, 1, 2]), torch.tensor([2, 2, 2]))
    assert words.tolist() == [WORLD.higher, WORLD.higher + 1, WORLD.found]
    assert WORLD.text(torch.tensor([2, WORLD.higher, 3, WORLD.found])) == "2 higher 3 found"
    assert WORLD.vocabulary == WORLD.found + 1


@pytest.mark.parametrize("world", [WORLD, GuessWorld(4, 3), GuessWorld(1, 2)])
def test_the_histories_are_those_that_some_secret_makes_possible(world):
    for k, histories in enumerate(all_histories(world)):
        replies = (world.higher, world.higher + 1)
        all_sequences = [sum(turns, ()) for turns in product(product(range(1, world.numbers + 1), replies), repeat=k)]
        expected = {tokens: numbers for tokens in all_sequences if (numbers := possible_secrets(world, tokens))}
        assert sorted(map(tuple, histories.tokens.tolist())) == sorted(expected)
        for tokens, low, high in zip(histories.tokens.tolist(), histories.low, histories.high, strict=True):
            assert expected[tuple(tokens)] == list(range(low, high + 1))


@pytest.mark.parametrize("world", [WORLD, GuessWorld(4, 3)])
def test_a_state_is_the_numbers_and_guesses_that_remain(world):
    policy = GuessPolicy(world)
    tokens = torch.cat([secret_episodes(policy, secret).tokens for secret in range(1, world.numbers + 1)])
    states, mask = turn_states(world, tokens), policy_mask(tokens)[:, ::2]
    seen: dict[int, tuple] = {}
    for b, k in mask.nonzero().tolist():
        meaning = (k, *possible_secrets(world, tokens[b, : 2 * k].tolist()))
        assert seen.setdefault(states[b, k].item(), meaning) == meaning
    assert len(set(seen.values())) == len(seen)


def test_the_policy_wrote_the_guesses_and_nothing_else_and_wins_at_the_end():
    tokens = torch.tensor([[2, WORLD.higher, 3, WORLD.found], [2, WORLD.found, 0, 0], [1, 4, 1, 4]])
    assert policy_mask(tokens).tolist() == [[True, False, True, False], [True, False, False, False], [True, False] * 2]
    assert episode_rewards(WORLD, tokens).tolist() == [[0, 1], [1, 0], [0, 0]]


def test_best_reward_of_a_guess_world_is_that_of_binary_search():
    assert [GuessWorld(*size).best_reward for size in ((7, 3), (15, 4), (15, 3), (1, 1))] == [1, 1, 7 / 15, 1]
