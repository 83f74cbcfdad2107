r"""Exact quantities of the game "higher or lower": expected rewards, and variances of gradient estimates."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor, nn

from grpo_lab.advantages import gigpo_advantages, trajectory_advantages, turn_advantages
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

# A function of turn_rewards, turn_mask and states, all (P, G, K), that returns the advantage of each turn, (P, G, K).
TurnAdvantages = Callable[[Tensor, Tensor, Tensor], Tensor]
# The kinds of credit assignment that lesson 11 compares.
TURN_ADVANTAGES: dict[str, TurnAdvantages] = {
    "trajectory": lambda rewards, mask, states: trajectory_advantages(rewards, mask),
    "turn": lambda rewards, mask, states: turn_advantages(rewards, mask),
    "state": turn_advantages,
    "gigpo": gigpo_advantages,
}


def win_probability(policy: GuessPolicy) -> Float[Tensor, ""]:
    r"""Compute the exact probability that the policy finds the secret.

    J = \frac{1}{N} \sum_h \pi(h) \sum_{x = \ell_h}^{u_h} \pi(x \mid h) \tag{11.3}

    The sum is over the histories h before all turns; \pi(h) is the product of the probabilities of the guesses in h.
    After h, the numbers from \ell_h to u_h may still be the secret. A guess x among them is right for one of the N
    secrets.

    Returns:
        J, a scalar with a gradient to the parameters of the policy.
    """
    world = policy.world
    total = torch.zeros(())
    for histories in all_histories(world):
        history_probability, guess_probability = _history_probabilities(policy, histories)
        number = torch.arange(1, world.numbers + 1)
        is_possible = (number >= histories.low[:, None]) & (number <= histories.high[:, None])
        in_range = (guess_probability * is_possible).sum(-1)  # H
        total = total + (history_probability * in_range).sum() / world.numbers  # scalar (11.3)
    return total


def _history_probabilities(policy: GuessPolicy, histories: Histories) -> tuple[Tensor, Tensor]:
    """Return for each history the probability of all its guesses, (H,), and of each next guess, (H, n)."""
    length = histories.tokens.shape[1]
    logp = policy(nn.functional.pad(histories.tokens, (0, 2))).log_softmax(-1)
    history_probability = logp[:, 0:length:2].gather(-1, histories.tokens[:, ::2, None])[..., 0].sum(-1).exp()
    return history_probability, logp[:, length, 1 : policy.world.numbers + 1].exp()


class SearchTree(NamedTuple):
    """The exact probabilities of a policy's guesses in each turn, for a secret drawn uniformly.

    Guess g has the index g - 1.

    Attributes:
        visits: The probability that the policy makes guess g in turn k.
        flows: The probability that it makes guess g in turn k, gets the reply "higher" or "lower", and then guesses g'.
    """

    visits: Float[Tensor, "K n"]
    flows: Float[Tensor, "K-1 n 2 n"]


@torch.no_grad()
def search_tree(policy: GuessPolicy) -> SearchTree:
    """Compute the `SearchTree` of a policy, by summing over all histories."""
    world = policy.world
    visits = policy.head.weight.new_zeros(world.guesses, world.numbers)
    flows = policy.head.weight.new_zeros(world.guesses - 1, world.numbers, 2, world.numbers)
    for k, histories in enumerate(all_histories(world)):
        history_probability, guess_probability = _history_probabilities(policy, histories)
        num_possible_secrets = histories.high - histories.low + 1
        reach_probability = history_probability * num_possible_secrets / world.numbers
        visits[k] = reach_probability @ guess_probability
        if k > 0:
            last_guess, reply = histories.tokens[:, -2] - 1, histories.tokens[:, -1] - world.higher
            joint_probability = reach_probability[:, None] * guess_probability
            flows[k - 1].index_put_((last_guess, reply), joint_probability, accumulate=True)
    return SearchTree(visits, flows)


class SecretEpisodes(NamedTuple):
    """All E episodes that are possible with one secret, with their probabilities under a policy, in float64.

    Attributes:
        tokens: The episodes.
        rewards: The reward of each episode.
        probability: The probability of each episode.
        scores: For each turn, the gradient of the log-probability of its guess with respect to the logits of all
            histories, N numbers. These logits are treated as the parameters, so the network does not matter. The score
            is zero after the end of an episode.
    """

    tokens: Int[Tensor, "E T"]
    rewards: Float[Tensor, " E"]
    probability: Float[Tensor, " E"]
    scores: Float[Tensor, "E K N"]


@torch.no_grad()
def secret_episodes(policy: GuessPolicy, secret: int) -> SecretEpisodes:
    """List all episodes that are possible with a secret, with their probabilities and the score of each turn."""
    world = policy.world
    tokens = torch.zeros(1, 0, dtype=torch.long)
    for _ in range(world.guesses):
        tokens = torch.cat([_continued(world, row, secret) for row in tokens])
    histories = [tuple(row) for turn in all_histories(world) for row in turn.tokens.tolist()]
    history_index = {history: i for i, history in enumerate(histories)}
    probability = torch.ones(len(tokens), dtype=torch.float64)
    scores = torch.zeros(len(tokens), world.guesses, len(histories), world.numbers, dtype=torch.float64)
    for k in range(world.guesses):
        is_running = tokens[:, 2 * k] != PAD
        running = is_running.nonzero()[:, 0]
        guess_probability = policy.guess_logits(tokens[:, : 2 * k]).double().softmax(-1)[is_running]
        history = torch.tensor([history_index[tuple(row)] for row in tokens[is_running, : 2 * k].tolist()])
        guess = nn.functional.one_hot(tokens[is_running, 2 * k] - 1, world.numbers)
        probability[is_running] *= (guess_probability * guess).sum(-1)
        scores[running, k, history] = guess - guess_probability
    rewards = (tokens == world.found).any(-1).double()
    return SecretEpisodes(tokens, rewards, probability, scores.flatten(2))


def _continued(world: GuessWorld, tokens: Int[Tensor, " T"], secret: int) -> Int[Tensor, "rows T+2"]:
    """Extend an episode by each guess and its reply, in a row for each guess; pad an episode that has ended."""
    if world.found in tokens:
        return nn.functional.pad(tokens[None], (0, 2), value=PAD)
    guess = torch.arange(1, world.numbers + 1)
    reply = world.answer(torch.full_like(guess, secret), guess)
    return torch.cat([tokens.expand(world.numbers, -1), guess[:, None], reply[:, None]], dim=1)


def group_moments(
    policy: GuessPolicy, secrets: Sequence[int], advantage: TurnAdvantages
) -> tuple[Float[Tensor, " N"], float]:
    """Compute the exact mean and variance of one group's gradient estimate, by listing all possible groups.

    The number of groups is the product of the numbers of episodes of their secrets, so this is for small games and
    small groups.

    Args:
        secrets: The secret of each of the G episodes of the group, such as (1, 1, 1) or (1, 2, 3).
        advantage: An entry of `TURN_ADVANTAGES`, or a function with the same arguments and result.

    Returns:
        The mean of the estimate, which is 1/G sum_i sum_k A_ik times the score of turn k; and its variance, the
        expected squared distance from this mean.
    """
    world = policy.world
    episodes_by_secret = {secret: secret_episodes(policy, secret) for secret in set(secrets)}
    members = [episodes_by_secret[secret] for secret in secrets]
    # One row for each possible group, with the index of the episode of each member.
    groups = torch.cartesian_prod(*[torch.arange(len(member.probability)) for member in members]).view(-1, len(secrets))
    mean, mean_square = torch.zeros(()), torch.zeros(())
    for some_groups in groups.split(2000):
        episodes = [[values[i] for values in member] for member, i in zip(members, some_groups.T, strict=True)]
        tokens, _, probability, scores = (torch.stack(column, dim=1) for column in zip(*episodes, strict=True))
        rows = tokens.flatten(0, 1)
        turn_data = (episode_rewards(world, rows).double(), policy_mask(rows)[:, ::2], turn_states(world, rows))
        advantages = advantage(*(values.view(*some_groups.shape, -1) for values in turn_data))
        estimates = einsum(advantages, scores, "m G K, m G K N -> m N") / len(secrets)
        group_probability = probability.prod(-1)
        mean = mean + group_probability @ estimates
        mean_square = mean_square + group_probability @ estimates.square().sum(-1)
    return mean, (mean_square - mean.square().sum()).item()


def leave_one_out_variance(policy: GuessPolicy, groups: Int[Tensor, "P G"]) -> float:
    r"""Compute the variance of a batch's gradient estimate with `trajectory_advantages`, for groups of any size.

    b_i = \frac{1}{G-1} \sum_{j \neq i} \mu_j, \quad v_i = \frac{1}{(G-1)^2} \sum_{j \neq i} \sigma_j^2 \tag{11.13}
    e_i = \mathrm{E} \big[ (R_i - b_i)^2 \lVert S_i \rVert^2 \big] + v_i \, \mathrm{E} \lVert S_i \rVert^2 \tag{11.14}
    V = \frac{1}{G^2} \Big( \sum_i (e_i - g_i^2) + \sum_{i \neq j} \frac{g_i \cdot g_j}{(G-1)^2} \Big) \tag{11.12}

    The equations are those of one group. R_i is the reward of episode i, with mean \mu_i and standard deviation
    \sigma_i; S_i is its score; and g_i = E[R_i S_i].

    Args:
        groups: The secret of each episode of each group, G at least 2.

    Returns:
        The variance of the mean of all groups' estimates, which is the mean of their V, divided by P.
    """
    check_shapes(groups=(groups, "P G>1"))
    secrets = range(1, policy.world.numbers + 1)
    by_moment = zip(*[_reward_moments(secret_episodes(policy, secret)) for secret in secrets], strict=True)
    mu, var, g, square, rewarded_square = (torch.stack(values)[groups - 1] for values in by_moment)
    G = groups.shape[1]
    b, v = _sum_of_others(mu) / (G - 1), _sum_of_others(var) / (G - 1) ** 2  # P G (11.13)
    e = (1 - b).square() * rewarded_square + b.square() * (square - rewarded_square) + v * square  # P G (11.14)
    g_square = g.square().sum(-1)
    products_of_pairs = g.sum(1).square().sum(-1) - g_square.sum(1)
    variance = ((e - g_square).sum(1) + products_of_pairs / (G - 1) ** 2) / G**2  # P (11.12)
    return variance.mean().item() / len(groups)


def _sum_of_others(values: Float[Tensor, "P G"]) -> Float[Tensor, "P G"]:
    """Return for each episode the sum of the values of the other episodes of its group."""
    return values.sum(-1, keepdim=True) - values


class _RewardMoments(NamedTuple):
    """Expectations over the episodes of one secret, in which R is the reward and S the score of an episode."""

    mu: Float[Tensor, ""]  # E[R]
    var: Float[Tensor, ""]  # the variance of R
    g: Float[Tensor, " N"]  # E[R S]
    square: Float[Tensor, ""]  # E|S|^2
    rewarded_square: Float[Tensor, ""]  # E[R |S|^2]


def _reward_moments(episodes: SecretEpisodes) -> _RewardMoments:
    p, rewards, scores = episodes.probability, episodes.rewards, episodes.scores.sum(1)
    mu, squares = p @ rewards, scores.square().sum(-1)
    return _RewardMoments(
        mu=mu,
        var=mu * (1 - mu),  # since R is 0 or 1
        g=(p * rewards) @ scores,
        square=p @ squares,
        rewarded_square=p @ (rewards * squares),
    )
