"""Tests of the exact rewards, gradients and variances of the game "higher or lower", against lists of all episodes."""

from itertools import product

import pytest
import torch

from grpo_lab.advantages import turn_advantages
from grpo_lab.toys.guess import (
    TURN_ADVANTAGES,
    GuessPolicy,
    GuessWorld,
    batch_advantages,
    expected_step,
    greedy_episodes,
    greedy_reward,
    group_moments,
    guess_loss,
    leave_one_out_variance,
    policy_mask,
    search_tree,
    win_probability,
)
from grpo_lab.toys.guess.exact import secret_episodes
from tests.support.agreement import assert_near

WORLD = GuessWorld(3, 2)
SECRETS = (1, 2, 3)
GROUPS = [(1, 1), (2, 2, 2), (1, 2, 3), (1, 2, 3, 3)]


@pytest.fixture(scope="module")
def policy():
    """Return a policy with random weights that clearly prefers some guesses."""
    policy = GuessPolicy(WORLD, seed=1)
    with torch.no_grad():
        policy.head.weight *= 3
    return policy.double()


def probability_of(policy, tokens) -> torch.Tensor:
    """Return the probability of one episode, as the product of those of its guesses."""
    probability = torch.ones((), dtype=torch.float64)
    for t in range(0, len(tokens), 2):
        if tokens[t]:
            probability = probability * policy.guess_logits(tokens[None, :t])[0].softmax(-1)[tokens[t] - 1]
    return probability


def test_every_episode_of_a_secret_is_listed_once(policy):
    for secret in SECRETS:
        episodes = secret_episodes(policy, secret)
        wrong_guesses = [g for g in SECRETS if g != secret]
        pairs = sorted([(secret, 0), *product(wrong_guesses, SECRETS)])
        assert sorted(map(tuple, episodes.tokens[:, ::2].tolist())) == pairs
        assert_near(episodes.probability.sum(), torch.ones(()), 1e-12)
        expected = torch.stack([probability_of(policy, row) for row in episodes.tokens]).detach()
        assert_near(episodes.probability, expected)


def test_the_expected_reward_and_its_gradient_are_those_of_all_episodes(policy):
    episodes_by_secret = [secret_episodes(policy, secret) for secret in SECRETS]
    listed = sum((e.probability * e.rewards).sum() for e in episodes_by_secret) / 3
    assert_near(win_probability(policy).detach(), listed)
    by_hand = sum(
        probability_of(policy, row) * reward
        for e in episodes_by_secret
        for row, reward in zip(e.tokens, e.rewards, strict=True)
    ) / 3  # fmt: skip
    parameters = list(policy.parameters())
    gradients = torch.autograd.grad(win_probability(policy), parameters, materialize_grads=True)
    expected_gradients = torch.autograd.grad(by_hand, parameters, materialize_grads=True)
    for gradient, expected in zip(gradients, expected_gradients, strict=True):
        assert_near(gradient, expected)


def test_scores_have_mean_zero_and_are_orthogonal_between_turns(policy):
    for secret in SECRETS:
        episodes = secret_episodes(policy, secret)
        assert_near(episodes.probability @ episodes.scores.sum(1), torch.zeros(episodes.scores.shape[-1]).double())
        norms = episodes.probability @ episodes.scores.sum(1).square().sum(-1)
        norms_by_turn = episodes.probability @ episodes.scores.square().sum((1, 2))
        assert_near(norms, norms_by_turn)  # different turns have different histories


def exact_gradient(policy, secrets):
    """Return the gradient of the mean reward of these secrets with respect to the logits of all histories."""
    episodes_by_secret = [secret_episodes(policy, secret) for secret in secrets]
    return sum((e.probability * e.rewards) @ e.scores.sum(1) for e in episodes_by_secret) / len(secrets)


@pytest.mark.parametrize("secrets", GROUPS)
@pytest.mark.parametrize("name", ["trajectory", "turn", "state"])
def test_leave_one_out_is_unbiased_for_any_group_and_turn_baseline(policy, name, secrets):
    mean, variance = group_moments(policy, secrets, TURN_ADVANTAGES[name])
    assert_near(mean, exact_gradient(policy, secrets))
    assert variance > 0.01


def test_an_advantage_of_zero_for_a_turn_alone_in_its_state_is_biased(policy):
    """If no other episode has a turn in the same state, a baseline of 0 is unbiased, but an advantage of 0 is not."""

    def alone_gets_nothing(rewards, mask, states):
        same_state = (states[:, :, None, :, None] == states[:, None, :, None, :]) & mask[:, None, :, None, :]
        has_others = (same_state & ~torch.eye(2, dtype=torch.bool)[:, :, None, None]).any((2, 4))
        return turn_advantages(rewards, mask, states) * has_others

    mean, _ = group_moments(policy, (2, 2), alone_gets_nothing)
    assert (mean - exact_gradient(policy, (2, 2))).abs().max() > 1e-3


@pytest.mark.parametrize("secrets", GROUPS)
def test_the_variance_of_leave_one_out_is_the_enumerated_one(policy, secrets):
    _, listed = group_moments(policy, secrets, TURN_ADVANTAGES["trajectory"])
    groups = torch.tensor([secrets])
    assert leave_one_out_variance(policy, groups) == pytest.approx(listed, rel=1e-10)
    assert leave_one_out_variance(policy, groups.repeat(3, 1)) == pytest.approx(listed / 3, rel=1e-10)


def test_the_loss_of_all_episodes_in_proportion_has_the_exact_gradient(policy):
    """With rewards as advantages, the losses of all episodes, weighted by their probabilities, have this gradient."""
    parameters, total = list(policy.parameters()), torch.zeros(())
    for secret in SECRETS:
        episodes = secret_episodes(policy, secret)
        for tokens, reward, probability in zip(episodes.tokens, episodes.rewards, episodes.probability, strict=True):
            advantages = (reward * policy_mask(tokens[None])[:, ::2]).double()
            total = total + probability * guess_loss(policy, tokens[None], advantages) * WORLD.guesses / 3
    exact_gradients = torch.autograd.grad(win_probability(policy), parameters, allow_unused=True)
    loss_gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    for exact, of_loss in zip(exact_gradients, loss_gradients, strict=True):
        if exact is not None:
            assert_near(of_loss, -exact, 1e-10)


def test_expected_step_equals_the_reward_gradient_only_if_replies_are_masked(policy):
    parameters = list(policy.parameters())
    exact = torch.autograd.grad(win_probability(policy), parameters, materialize_grads=True)
    exact = torch.nn.utils.parameters_to_vector(exact)
    assert_near(expected_step(policy), exact, 1e-10)
    without_mask = expected_step(policy, train_on_replies=True)
    assert (without_mask - exact).norm() > exact.norm()


def test_replies_have_no_gradient(policy, monkeypatch):
    """The gradient of the logits at replies is exactly zero, unless `train_on_replies` leaves out the mask."""
    tokens = secret_episodes(policy, 2).tokens
    assert torch.equal(tokens, tokens.unique(dim=0))
    advantages = torch.ones(len(tokens), WORLD.guesses, dtype=torch.float64)
    logits = policy(tokens).detach().requires_grad_()
    monkeypatch.setattr(policy, "forward", lambda rows: logits)
    for train_on_replies in (False, True):
        loss = guess_loss(policy, tokens, advantages, entropy_weight=0.1, train_on_replies=train_on_replies)
        gradient = torch.autograd.grad(loss, logits)[0]
        assert bool((gradient[:, 1::2] != 0).any()) is train_on_replies
        assert (gradient[:, ::2] != 0).any()


def test_the_search_tree_counts_every_guess(policy):
    tree = search_tree(policy)
    visits, flows = torch.zeros(2, 3).double(), torch.zeros(1, 3, 2, 3).double()
    for secret in SECRETS:
        episodes = secret_episodes(policy, secret)
        for (first, reply, second, _), probability in zip(episodes.tokens.tolist(), episodes.probability, strict=True):
            visits[0, first - 1] += probability / 3
            if second:
                visits[1, second - 1] += probability / 3
                flows[0, first - 1, reply - WORLD.higher, second - 1] += probability / 3
    assert_near(tree.visits, visits, 1e-6)
    assert_near(tree.flows, flows, 1e-6)


def test_greedy_episodes_take_the_most_likely_guess(policy):
    episodes = greedy_episodes(policy)
    for secret, row in enumerate(episodes, 1):
        for t in range(0, 4, 2):
            if row[t]:
                assert row[t] == 1 + policy.guess_logits(row[None, :t])[0].argmax()
                assert row[t + 1] == WORLD.answer(torch.tensor([secret]), row[t : t + 1])
    assert greedy_reward(policy) == pytest.approx((episodes == WORLD.found).any(-1).double().mean().item())


def test_groups_of_one_secret_and_of_mixed_secrets():
    """If only the first secret is found, advantages are zero in groups of one secret, but not in mixed groups."""
    tokens = torch.tensor([[1, WORLD.found, 0, 0]] * 2 + [[1, WORLD.higher, 1, WORLD.higher]] * 4)
    assert (batch_advantages(WORLD, tokens, 2, "one secret", "trajectory") == 0).all()
    mixed = batch_advantages(WORLD, tokens, 2, "mixed secrets", "trajectory")
    assert mixed.tolist() == [[1, 0], [1, 0], [-1, -1], [0, 0], [-1, -1], [0, 0]]  # groups 1 2, 3 1, 2 3
