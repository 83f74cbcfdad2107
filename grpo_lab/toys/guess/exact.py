r"""What is exact in the world of higher or lower: the reward of a policy, and the variance of gradient estimates."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor, nn

from grpo_lab.base.checks import check_shapes
from grpo_lab.toys.guess.policy import GuessPolicy
from grpo_lab.toys.guess.world import (
    PAD,
    GuessWorld,
    Histories,
    all_histories,
    episode_rewards,
    policy_mask,
    turn_states,
)

Credit = Callable[..., Tensor]


def win_probability(policy: GuessPolicy) -> Float[Tensor, ""]:
    r"""Exact probability that the policy finds the secret.

    J = \frac{1}{N} \sum_h \pi(h) \sum_{x = \ell_h}^{u_h} \pi(x \mid h) \tag{11.3}

    The sum is over the histories of all turns; \pi(h) is the product of the probabilities of the guesses in h. After h,
    the numbers from \ell_h to u_h may still be the secret, and a guess x among them is right for one secret of N.
    """
    world = policy.world
    total = torch.zeros(())
    for histories in all_histories(world):
        chosen, guess = _history_probabilities(policy, histories)
        number = torch.arange(1, world.numbers + 1)
        possible = (number >= histories.low[:, None]) & (number <= histories.high[:, None])
        total = total + (chosen * (guess * possible).sum(-1)).sum() / world.numbers  # scalar (11.3)
    return total


def _history_probabilities(policy: GuessPolicy, histories: Histories) -> tuple[Tensor, Tensor]:
    """Return for each history the probability of all its guesses, (H,), and of each next guess, (H, n)."""
    length = histories.tokens.shape[1]
    logp = policy(nn.functional.pad(histories.tokens, (0, 2))).log_softmax(-1)
    past = logp[:, 0:length:2].gather(-1, histories.tokens[:, ::2, None])[..., 0].sum(-1).exp()
    return past, logp[:, length, 1 : policy.world.numbers + 1].exp()


class SearchTree(NamedTuple):
    """The exact probabilities of a policy's guesses, turn by turn, over all secrets.

    visits: the probability that turn k guesses g. flows: that it does, hears a word (higher, lower), and then guesses
    g'. The guess g stands at index g - 1.
    """

    visits: Float[Tensor, "K n"]
    flows: Float[Tensor, "K-1 n 2 n"]


@torch.no_grad()
def search_tree(policy: GuessPolicy) -> SearchTree:
    """The policy as a picture: sum over all histories how often each is reached and what is guessed there."""
    world = policy.world
    visits = policy.head.weight.new_zeros(world.guesses, world.numbers)
    flows = policy.head.weight.new_zeros(world.guesses - 1, world.numbers, 2, world.numbers)
    for k, histories in enumerate(all_histories(world)):
        chosen, guess = _history_probabilities(policy, histories)
        reached = chosen * (histories.high - histories.low + 1) / world.numbers
        visits[k] = reached @ guess
        if k:
            last, word = histories.tokens[:, -2] - 1, histories.tokens[:, -1] - world.higher
            flows[k - 1].index_put_((last, word), reached[:, None] * guess, accumulate=True)
    return SearchTree(visits, flows)


class SecretEpisodes(NamedTuple):
    """All E episodes that one secret allows, under a policy; in float64.

    scores: of each turn, the gradient of the log-probability of its guess with respect to the logits of all histories,
    as if these were the parameters, before the network mixes them. Zero where there is no turn.
    """

    tokens: Int[Tensor, "E T"]
    rewards: Float[Tensor, " E"]
    probability: Float[Tensor, " E"]
    scores: Float[Tensor, "E K N"]


@torch.no_grad()
def secret_episodes(policy: GuessPolicy, secret: int) -> SecretEpisodes:
    """List every episode of a secret: its probability, and the score of each of its turns."""
    world = policy.world
    tokens = torch.zeros(1, 0, dtype=torch.long)
    for _ in range(world.guesses):
        tokens = torch.cat([_continued(world, row, secret) for row in tokens])
    histories = [tuple(row) for turn in all_histories(world) for row in turn.tokens.tolist()]
    history_index = {history: i for i, history in enumerate(histories)}
    every = torch.arange(len(tokens))
    probability = torch.ones(len(tokens), dtype=torch.float64)
    scores = torch.zeros(len(tokens), world.guesses, len(histories), world.numbers, dtype=torch.float64)
    for k in range(world.guesses):
        playing = tokens[:, 2 * k] != PAD
        guesses = policy.guess_logits(tokens[:, : 2 * k]).double().softmax(-1)[playing]
        history = torch.tensor([history_index[tuple(row)] for row in tokens[playing, : 2 * k].tolist()])
        guess = nn.functional.one_hot(tokens[playing, 2 * k] - 1, world.numbers)
        probability[playing] *= (guesses * guess).sum(-1)
        scores[every[playing], k, history] = guess - guesses
    rewards = (tokens == world.found).any(-1).double()
    return SecretEpisodes(tokens, rewards, probability, scores.flatten(2))


def _continued(world: GuessWorld, tokens: Int[Tensor, " T"], secret: int) -> Int[Tensor, "C U"]:
    """An episode so far with each next guess and its answer; with padding where it is over."""
    if world.found in tokens:
        return nn.functional.pad(tokens[None], (0, 2), value=PAD)
    guess = torch.arange(1, world.numbers + 1)
    answer = world.answer(torch.full_like(guess, secret), guess)
    return torch.cat([tokens.expand(world.numbers, -1), guess[:, None], answer[:, None]], dim=1)


def group_moments(policy: GuessPolicy, secrets: Sequence[int], credit: Credit) -> tuple[Float[Tensor, " N"], float]:
    """The mean and the variance of one group's gradient estimate, by listing every group that can be sampled.

    Args:
        secrets: of the G episodes of the group: (1, 1, 1), or (1, 2, 3).
        credit: the `compute` of an entry of `TURN_ADVANTAGES`, or any function of its kind.

    Returns:
        The mean of 1/G sum_i sum_k A_ik times the score of turn k; and the expected squared distance from it. There are
            as many groups as the product of the numbers of episodes: for small worlds and small groups.
    """
    world = policy.world
    sets = {secret: secret_episodes(policy, secret) for secret in set(secrets)}
    members = [sets[secret] for secret in secrets]
    picks = torch.cartesian_prod(*[torch.arange(len(member.probability)) for member in members])  # groups, G
    mean, square = 0.0, 0.0
    for part in picks.view(-1, len(secrets)).split(2000):
        chosen = [[values[i] for values in member] for member, i in zip(members, part.T, strict=True)]
        tokens, _, probability, scores = (torch.stack(column, dim=1) for column in zip(*chosen, strict=True))
        rows = tokens.flatten(0, 1)
        turns = (episode_rewards(world, rows).double(), policy_mask(rows)[:, ::2], turn_states(world, rows))
        advantages = credit(*(values.view(*part.shape, -1) for values in turns))
        estimates = einsum(advantages, scores, "m G K, m G K N -> m N") / len(secrets)
        weights = probability.prod(-1)
        mean = mean + weights @ estimates
        square = square + weights @ estimates.square().sum(-1)
    return mean, (square - mean.square().sum()).item()


def leave_one_out_variance(policy: GuessPolicy, groups: Int[Tensor, "P G"]) -> float:
    r"""The variance of a batch's gradient estimate with `trajectory_advantages`, for groups of any size.

    b_i = \frac{1}{G-1} \sum_{j \neq i} \mu_j, \quad v_i = \frac{1}{(G-1)^2} \sum_{j \neq i} \sigma_j^2 \tag{11.13}
    e_i = \mathrm{E} \big[ (R_i - b_i)^2 \lVert S_i \rVert^2 \big] + v_i \, \mathrm{E} \lVert S_i \rVert^2 \tag{11.14}
    V = \frac{1}{G^2} \Big( \sum_i (e_i - g_i^2) + \sum_{i \neq j} \frac{g_i \cdot g_j}{(G-1)^2} \Big) \tag{11.12}

    This is for one group: R is the reward of an episode, with mean \mu and standard deviation \sigma; S is its score;
    g = E[R S].

    Args:
        groups: the secret of each episode of each group, G at least 2.

    Returns:
        The variance of the mean over all groups: their mean V, divided by P.
    """
    check_shapes(groups=(groups, "P G>1"))
    moments = [_reward_moments(secret_episodes(policy, s)) for s in range(1, policy.world.numbers + 1)]
    mu, var, gradient, squared, by_reward = (torch.stack(column)[groups - 1] for column in zip(*moments, strict=True))
    G = groups.shape[1]
    b, v = _without_own(mu) / (G - 1), _without_own(var) / (G - 1) ** 2  # P G (11.13)
    e = (1 - b).square() * by_reward + b.square() * (squared - by_reward) + v * squared  # P G (11.14)
    own = gradient.square().sum(-1)
    pairs = gradient.sum(1).square().sum(-1) - own.sum(1)
    variance = ((e - own).sum(1) + pairs / (G - 1) ** 2) / G**2  # P (11.12)
    return variance.mean().item() / len(groups)


def _without_own(values: Float[Tensor, "P G"]) -> Float[Tensor, "P G"]:
    return values.sum(-1, keepdim=True) - values


def _reward_moments(episodes: SecretEpisodes) -> tuple[Tensor, ...]:
    """Return, for one secret, the mean and variance of R, E[R S], E|S|^2 and E[R |S|^2]."""
    p, score = episodes.probability, episodes.scores.sum(1)
    reward = episodes.rewards
    squared, mu = score.square().sum(-1), p @ reward
    return mu, mu * (1 - mu), (p * reward) @ score, p @ squared, p @ (reward * squared)
