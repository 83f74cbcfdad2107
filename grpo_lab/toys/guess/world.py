r"""The world of higher or lower: a secret number, a few guesses, and the words that answer them.

Axes: B episodes, K turns, T = 2K tokens, V tokens of the vocabulary. An episode is a row of tokens, guess and word in
turn: 4 higher 6 found. Token 0 is padding, and begins every episode; token g is the number g; three words follow.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.base.checks import check_at_least, check_shapes

PAD = 0
WORDS = ("higher", "lower", "found")


class GuessWorld(NamedTuple):
    """Numbers 1 to n, of which one is the secret, and K guesses to find it."""

    numbers: int = 7
    guesses: int = 3

    @property
    def higher(self) -> int:
        """The token that says: the secret is higher than this guess. The other two words follow it."""
        return self.numbers + 1

    @property
    def found(self) -> int:
        """The token that says: this is the secret. It ends the episode."""
        return self.numbers + 3

    @property
    def vocabulary(self) -> int:
        """V: padding, the numbers, three words."""
        return self.numbers + 1 + len(WORDS)

    @property
    def best_reward(self) -> float:
        """The expected reward of binary search: K guesses can tell 2^K - 1 numbers apart."""
        return min(1.0, (2**self.guesses - 1) / self.numbers)

    def answer(self, secrets: Int[Tensor, " B"], guesses: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """The world's word about a guess: higher, lower, or found."""
        return self.higher + torch.where(secrets > guesses, 0, torch.where(secrets < guesses, 1, 2))

    def text(self, tokens: Int[Tensor, " T"]) -> str:
        """An episode as one reads it."""
        names = {self.higher + i: word for i, word in enumerate(WORDS)}
        return " ".join(names.get(token, str(token)) for token in tokens.tolist() if token != PAD)


class Histories(NamedTuple):
    """Every history that can stand before turn k: guesses and words so far, and the numbers that they leave.

    low, high: the first and the last number that may still be the secret.
    """

    tokens: Int[Tensor, "H T"]
    low: Int[Tensor, " H"]
    high: Int[Tensor, " H"]


def policy_mask(tokens: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """Mask of the tokens that the policy wrote: True at guesses, False at the world's words and at padding."""
    check_shapes(tokens=(tokens, "B T"))
    is_guess = torch.arange(tokens.shape[1], device=tokens.device) % 2 == 0
    return is_guess & (tokens != PAD)


def episode_rewards(world: GuessWorld, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B K"]:
    """The reward of each turn: 1 where the secret is found, else 0."""
    return (tokens[:, 1::2] == world.found).float()


def turn_states(world: GuessWorld, tokens: Int[Tensor, "B T"]) -> Int[Tensor, "B K"]:
    """The state in which each turn begins, as one number: its place, and the first and last number still possible.

    Two histories of one turn that leave the same numbers are the same state: 2 higher 6 lower, and 6 lower 2 higher.
    """
    low, high = torch.ones(len(tokens), dtype=torch.long), torch.full((len(tokens),), world.numbers)
    states = []
    for k in range(world.guesses):
        states.append((k * (world.numbers + 1) + low) * (world.numbers + 1) + high)
        guess, word = tokens[:, 2 * k], tokens[:, 2 * k + 1]
        low = torch.where(word == world.higher, torch.maximum(low, guess + 1), low)
        high = torch.where(word == world.higher + 1, torch.minimum(high, guess - 1), high)
    return torch.stack(states, dim=1)


def all_histories(world: GuessWorld) -> list[Histories]:
    """For each turn, every history that some secret makes possible; guesses may be foolish, words are true."""
    check_at_least("numbers", world.numbers, 1)
    check_at_least("guesses", world.guesses, 1)
    lowest = torch.ones(1, dtype=torch.long)
    turns = [Histories(torch.empty(1, 0, dtype=torch.long), lowest, lowest * world.numbers)]
    for _ in range(world.guesses - 1):
        turns.append(_next_histories(world, turns[-1]))
    return turns


def _next_histories(world: GuessWorld, histories: Histories) -> Histories:
    """Each history with each guess and each of the two words, if some secret makes that word true."""
    tokens, low, high = (values.repeat_interleave(world.numbers, 0) for values in histories)
    guess = torch.arange(1, world.numbers + 1).repeat(len(histories.low))
    remaining = [(torch.maximum(low, guess + 1), high), (low, torch.minimum(high, guess - 1))]  # higher, lower
    parts = []
    for word, (new_low, new_high) in enumerate(remaining):
        turn = torch.stack([guess, torch.full_like(guess, world.higher + word)], dim=1)
        possible = new_low <= new_high
        parts.append([torch.cat([tokens, turn], dim=1)[possible], new_low[possible], new_high[possible]])
    return Histories(*map(torch.cat, zip(*parts, strict=True)))
