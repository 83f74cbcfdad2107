"""Tests of the small world: probabilities by hand, frequencies of samples, and scores with mean zero."""

import pytest
import torch

from grpo_lab.policy_gradient import expected_reward, reinforce_loss, score_function_objective
from grpo_lab.toys.worlds.small_world import SmallWorld


@pytest.mark.parametrize(("vocabulary", "length"), [(2, 1), (3, 3), (4, 2)])
def test_probabilities_are_products_over_prefixes(vocabulary, length):
    world = SmallWorld(vocabulary, length, seed=1)
    next_probabilities, row = {}, 0
    for t in range(length):
        for prefix in SmallWorld(vocabulary, t).sequences.tolist() if t else [[]]:
            next_probabilities[tuple(prefix)] = world.logits[row].softmax(-1)
            row += 1
    assert row == len(world.logits)
    for sequence, probability in zip(world.sequences.tolist(), world.probabilities(), strict=True):
        expected = 1.0
        for t in range(length):
            expected = expected * next_probabilities[tuple(sequence[:t])][sequence[t]]
        torch.testing.assert_close(probability, expected)
    torch.testing.assert_close(world.probabilities().sum(), torch.tensor(1.0, dtype=torch.float64))


def test_samples_have_the_frequencies_of_the_policy():
    world = SmallWorld(3, 2, seed=2)
    frequencies = torch.bincount(world.sample(40_000), minlength=9) / 40_000
    standard_error = (world.probabilities() * (1 - world.probabilities()) / 40_000).sqrt()
    assert ((frequencies - world.probabilities()).abs() < 4.5 * standard_error).all()
    assert world.sample(10, seed=1).tolist() == world.sample(10, seed=1).tolist()


def test_scores_average_to_zero_and_give_both_gradients():
    world = SmallWorld(3, 3, seed=3)
    rewards = torch.arange(27, dtype=torch.float64).sin()
    probabilities, scores, seq_logp = world.probabilities().detach(), world.scores(), world.logp().sum(-1)
    torch.testing.assert_close(probabilities @ scores, torch.zeros_like(scores[0]), atol=1e-12, rtol=0)
    exact = world.gradient(expected_reward(seq_logp, rewards))
    torch.testing.assert_close((probabilities * rewards) @ scores, exact)
    torch.testing.assert_close(world.gradient(score_function_objective(seq_logp, rewards)), exact)
    samples = world.sample(5)
    estimate = -world.gradient(reinforce_loss(seq_logp[samples], rewards[samples]))
    torch.testing.assert_close(estimate, (rewards[samples, None] * scores[samples]).mean(0))
