r"""The environment of the game "higher or lower": the policy guesses a secret number, and the environment replies.

An episode is a row of tokens in which guesses and replies alternate: "4 higher 6 found". Token 0 is padding, and also
the input before the first token; token g is the number g; the tokens of the three words follow the numbers.

Axes: B episodes, K turns, T = 2K tokens, V tokens of the vocabulary, H histories.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from grpo_lab.base.checks import check_at_least, check_shapes

PAD = 0
WORDS = ("higher", "lower", "found")


class GuessWorld(NamedTuple):
    """The game with the numbers 1 to n, one of which is the secret.

    Attributes:
        numbers: n, the number of possible secrets.
        guesses: K, the number of guesses in an episode.
    """

    numbers: int = 7
    guesses: int = 3

    @property
    def higher(self) -> int:
        """The token of the word "higher": the secret is higher than the guess. The token of "lower" is the next one."""
        return self.numbers + 1

    @property
    def found(self) -> int:
        """The token of the word "found": the guess is the secret. It ends the episode."""
        return self.numbers + 3

    @property
    def vocabulary(self) -> int:
        """V, the number of tokens: padding, the numbers, and the three words."""
        return self.numbers + 1 + len(WORDS)

    @property
    def best_reward(self) -> float:
        """The expected reward of binary search: K guesses can tell 2^K - 1 numbers apart."""
        return min(1.0, (2**self.guesses - 1) / self.numbers)

    def answer(self, secrets: Int[Tensor, " B"], guesses: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """Return the reply to each guess, as the token of "higher", "lower" or "found"."""
        return self.higher + torch.where(secrets > guesses, 0, torch.where(secrets < guesses, 1, 2))

    def text(self, tokens: Int[Tensor, " T"]) -> str:
        """Return an episode as readable text, such as "4 higher 6 found"."""
        names = {self.higher + i: word for i, word in enumerate(WORDS)}
        return " ".join(names.get(token, str(token)) for token in tokens.tolist() if token != PAD)


class Histories(NamedTuple):
    """All H histories that are possible before a turn.

    Attributes:
        tokens: The guesses and replies so far.
        low: The lowest number that may still be the secret after each history.
        high: The highest number that may still be the secret.
    """

    tokens: Int[Tensor, "H T"]
    low: Int[Tensor, " H"]
    high: Int[Tensor, " H"]


def policy_mask(tokens: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """Return the mask of the tokens that the policy wrote: True at guesses, False at replies and at padding."""
    check_shapes(tokens=(tokens, "B T"))
    is_guess = torch.arange(tokens.shape[1], device=tokens.device) % 2 == 0
    return is_guess & (tokens != PAD)


def episode_rewards(world: GuessWorld, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B K"]:
    """Return the reward of each turn: 1 if it finds the secret, and 0 otherwise."""
    return (tokens[:, 1::2] == world.found).float()


def turn_states(world: GuessWorld, tokens: Int[Tensor, "B T"]) -> Int[Tensor, "B K"]:
    """Return the state in which each turn begins, as one number that encodes k and the numbers that are still possible.

    Histories before the same turn that leave the same numbers lead to the same state, such as "2 higher 6 lower" and
    "6 lower 2 higher".
    """
    low, high = torch.ones(len(tokens), dtype=torch.long), torch.full((len(tokens),), world.numbers)
    states = []
    for k in range(world.guesses):
        states.append((k * (world.numbers + 1) + low) * (world.numbers + 1) + high)
        guess, reply = tokens[:, 2 * k], tokens[:, 2 * k + 1]
        low = torch.where(reply == world.higher, torch.maximum(low, guess + 1), low)
        high = torch.where(reply == world.higher + 1, torch.minimum(high, guess - 1), high)
    return torch.stack(states, dim=1)


def all_histories(world: GuessWorld) -> list[Histories]:
    """List, for each turn, all histories before it: any guesses, with the replies that some secret gives to them."""
    check_at_least("numbers", world.numbers, 1)
    check_at_least("guesses", world.guesses, 1)
    lowest = torch.ones(1, dtype=torch.long)
    histories_of_turns = [Histories(torch.empty(1, 0, dtype=torch.long), lowest, lowest * world.numbers)]
    for _ in range(world.guesses - 1):
        histories_of_turns.append(_next_histories(world, histories_of_turns[-1]))
    return histories_of_turns


def _next_histories(world: GuessWorld, histories: Histories) -> Histories:
    """Extend each history by each guess and the replies "higher" and "lower", if some secret gives that reply."""
    tokens, low, high = (values.repeat_interleave(world.numbers, 0) for values in histories)
    guess = torch.arange(1, world.numbers + 1).repeat(len(histories.low))
    ranges_after_reply = [(torch.maximum(low, guess + 1), high), (low, torch.minimum(high, guess - 1))]  # higher, lower
    extended = []
    for reply, (new_low, new_high) in enumerate(ranges_after_reply):
        turn = torch.stack([guess, torch.full_like(guess, world.higher + reply)], dim=1)
        is_possible = new_low <= new_high
        extended.append([torch.cat([tokens, turn], dim=1)[is_possible], new_low[is_possible], new_high[is_possible]])
    return Histories(*map(torch.cat, zip(*extended, strict=True)))
