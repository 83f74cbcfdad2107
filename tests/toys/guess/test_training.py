"""Tests of training on "higher or lower": reproducible runs, the effect of options, and a policy that learns."""

import pytest
import torch

from grpo_lab.toys.guess import GuessPolicy, GuessWorld, sample_episodes, train_guess

WORLD = GuessWorld(3, 2)
SHORT = {"steps": 6, "num_generations": 4, "eval_every": 3}


def weights(run):
    return torch.cat([parameter.flatten() for parameter in run.policy.parameters()])


def test_train_guess_depends_on_the_seed_and_not_on_the_number_of_evaluations():
    run, repeated, measured_often, other_seed = (
        train_guess(WORLD, **(SHORT | change)) for change in ({}, {}, {"eval_every": 1}, {"seed": 1})
    )
    assert torch.equal(weights(run), weights(repeated))
    assert run.rewards == repeated.rewards
    assert torch.equal(weights(run), weights(measured_often))
    assert run.steps == [0, 3, 6]
    assert not torch.equal(weights(run), weights(other_seed))


@pytest.mark.parametrize(
    "change", [{"entropy_weight": 0.1}, {"groups": "mixed secrets"}, {"advantage": "state"}, {"train_on_replies": True}]
)
def test_each_option_of_train_guess_changes_the_run(change):
    assert not torch.equal(weights(train_guess(WORLD, **SHORT)), weights(train_guess(WORLD, **SHORT, **change)))


def test_sampled_episodes_follow_the_rules():
    secrets = torch.tensor([1, 2, 3]).repeat(20)
    tokens = sample_episodes(GuessPolicy(WORLD), secrets, torch.Generator().manual_seed(0))
    for secret, (guess, reply, second_guess, second_reply) in zip(secrets.tolist(), tokens.tolist(), strict=True):
        assert reply == WORLD.answer(torch.tensor([secret]), torch.tensor([guess]))
        if reply == WORLD.found:
            assert (second_guess, second_reply) == (0, 0)
        else:
            assert second_reply == WORLD.answer(torch.tensor([secret]), torch.tensor([second_guess]))


def test_train_guess_learns_to_search_three_numbers_with_two_guesses():
    run = train_guess(WORLD, steps=80, num_generations=16, learning_rate=5e-3, entropy_weight=0.05)
    assert run.rewards[0] < 0.7 < 0.95 < run.rewards[-1]
    assert run.greedy[-1] == 1


@pytest.mark.parametrize("wrong", [{"groups": "x"}, {"advantage": "x"}, {"num_generations": 1}, {"learning_rate": 0.0}])
def test_train_guess_refuses_impossible_settings_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        train_guess(WORLD, **wrong)
