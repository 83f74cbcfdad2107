"""Sampling of episodes of the game "higher or lower", in which guesses and replies are tokens of one row."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from grpo_lab.toys.guess.policy import GuessPolicy
from grpo_lab.toys.guess.world import PAD


def sample_episodes(
    policy: GuessPolicy, secrets: Int[Tensor, " B"], generator: torch.Generator | None = None
) -> Int[Tensor, "B T"]:
    """Play an episode for each secret, with guesses sampled from the policy.

    An episode ends when the secret is found, or after K guesses.
    """
    return _play(policy, secrets, lambda logits: torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0])


def greedy_episodes(policy: GuessPolicy) -> Int[Tensor, "n T"]:
    """Play an episode for each secret, in which the policy always makes its most likely guess."""
    return _play(policy, torch.arange(1, policy.world.numbers + 1), lambda logits: logits.argmax(-1))


def greedy_reward(policy: GuessPolicy) -> float:
    """Return the share of the n secrets that the policy finds if it always makes its most likely guess."""
    return (greedy_episodes(policy) == policy.world.found).any(-1).float().mean().item()


@torch.no_grad()
def _play(
    policy: GuessPolicy, secrets: Int[Tensor, " B"], choose: Callable[[Float[Tensor, "B n"]], Int[Tensor, " B"]]
) -> Int[Tensor, "B T"]:
    """Play an episode for each secret; `choose` takes the logits of the numbers 1 to n and returns indices from 0."""
    world = policy.world
    tokens = torch.full((len(secrets), 2 * world.guesses), PAD)
    is_running = torch.ones(len(secrets), dtype=torch.bool)
    for t in range(0, 2 * world.guesses, 2):
        guess = 1 + choose(policy.guess_logits(tokens[:, :t]))
        reply = world.answer(secrets, guess)
        tokens[:, t], tokens[:, t + 1] = torch.where(is_running, guess, PAD), torch.where(is_running, reply, PAD)
        is_running = is_running & (reply != world.found)
    return tokens
