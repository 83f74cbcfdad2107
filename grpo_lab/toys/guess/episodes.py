"""Playing higher or lower: the policy guesses, the world answers, and both are tokens of one row."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from grpo_lab.toys.guess.policy import GuessPolicy
from grpo_lab.toys.guess.world import PAD


def sample_episodes(
    policy: GuessPolicy, secrets: Int[Tensor, " B"], generator: torch.Generator | None = None
) -> Int[Tensor, "B T"]:
    """Play one episode for each secret, each guess drawn from the policy, until it is found or no guess is left."""
    return _play(policy, secrets, lambda logits: torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0])


def greedy_episodes(policy: GuessPolicy) -> Int[Tensor, "n T"]:
    """The episode of each secret if the policy always takes its most likely guess."""
    return _play(policy, torch.arange(1, policy.world.numbers + 1), lambda logits: logits.argmax(-1))


def greedy_reward(policy: GuessPolicy) -> float:
    """Share of all secrets that the most likely guesses find, a multiple of 1 / n."""
    return (greedy_episodes(policy) == policy.world.found).any(-1).float().mean().item()


@torch.no_grad()
def _play(
    policy: GuessPolicy, secrets: Int[Tensor, " B"], choose: Callable[[Float[Tensor, "B n"]], Int[Tensor, " B"]]
) -> Int[Tensor, "B T"]:
    world = policy.world
    tokens = torch.full((len(secrets), 2 * world.guesses), PAD)
    playing = torch.ones(len(secrets), dtype=torch.bool)
    for t in range(0, 2 * world.guesses, 2):
        guess = 1 + choose(policy.guess_logits(tokens[:, :t]))
        word = world.answer(secrets, guess)
        tokens[:, t], tokens[:, t + 1] = torch.where(playing, guess, PAD), torch.where(playing, word, PAD)
        playing = playing & (word != world.found)
    return tokens
