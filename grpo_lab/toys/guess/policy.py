"""The policy of the game "higher or lower", and the episodes that it plays.

The policy is a small transformer with random weights, over the tokens of an episode. Guesses and replies are tokens of
one row.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from grpo_lab.toys.guess.world import PAD, GuessWorld

WIDTH, LAYERS, HEADS = 32, 2, 4


class GuessPolicy(nn.Module):
    """A causal transformer over the tokens of an episode.

    It predicts every token, guesses and replies alike, as a language model does. At the positions of guesses only the
    tokens of numbers have a probability above 0.
    """

    def __init__(self, world: GuessWorld, seed: int = 0):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.token = nn.Embedding(world.vocabulary, WIDTH)
            self.position = nn.Embedding(2 * world.guesses, WIDTH)
            layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
            self.head = nn.Linear(WIDTH, world.vocabulary)
        self.world = world

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Return the logits of each token given those before it; at guesses, -inf for tokens that are not numbers."""
        input_ids = nn.functional.pad(tokens[:, :-1], (1, 0), value=PAD)
        length = input_ids.shape[1]
        hidden = self.token(input_ids) + self.position.weight[:length]
        future = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
        logits = self.head(self.layers(hidden, mask=future))
        token = torch.arange(self.world.vocabulary, device=tokens.device)
        is_number = (token >= 1) & (token <= self.world.numbers)
        is_guess_position = torch.arange(length, device=tokens.device)[:, None] % 2 == 0
        return logits.masked_fill(is_guess_position & ~is_number, -torch.inf)

    def guess_logits(self, history: Int[Tensor, "B T"]) -> Float[Tensor, "B n"]:
        """Return the logits of the numbers 1 to n as the next guess after each history."""
        tokens = nn.functional.pad(history, (0, 1), value=PAD)
        unique_tokens, index = tokens.unique(dim=0, return_inverse=True)  # one forward pass for equal histories
        return self(unique_tokens)[index, -1, 1 : self.world.numbers + 1]


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
