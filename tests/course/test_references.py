"""Tests of references that no other part of the package uses, against independent implementations."""

from itertools import permutations
from statistics import fmean

import pytest
import torch
from transformers.generation import TemperatureLogitsWarper, TopPLogitsWarper

from grpo_lab.course.exercise import Draws
from grpo_lab.course.exercises.nb01 import END, MeanContextModel, sample_tokens
from grpo_lab.course.exercises.nb06 import KINDS, WORKED_OUT, SumCompletions, after_policy, design_reward
from grpo_lab.course.exercises.nb07 import PromptPool, dynamic_sampling
from grpo_lab.course.exercises.nb07c import samples_until_right
from grpo_lab.course.exercises.nb09 import FAULTS, log_of_run, name_fault
from grpo_lab.rewards import accuracy_reward


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (1.5, 0.8), (1.0, 0.5)])
def test_a_sampler_draws_from_the_distribution_of_transformers(temperature, top_p):
    """With equally spaced random numbers, the share of each token is its probability, up to 1.5 of N samples."""
    N, model = 2000, MeanContextModel(Draws(3), 9)
    ids = torch.tensor([[END, 4, 7]])
    mask = torch.tensor([[False, True, True]])
    logits = TemperatureLogitsWarper(temperature)(None, model(ids, mask)[:, -1])
    p = TopPLogitsWarper(top_p)(None, logits).softmax(-1)[0]
    spaced = (torch.arange(N, dtype=torch.float64)[:, None] + 0.5) / N
    tokens = sample_tokens(model, ids.expand(N, -1), mask.expand(N, -1), spaced, END, temperature, top_p)
    shares = torch.bincount(tokens[:, 0], minlength=9) / N
    assert torch.allclose(shares.double(), p, atol=1.5 / N)
    assert (p[shares > 0] > 0).all()


def test_padding_on_the_left_changes_no_completion():
    model, draws = MeanContextModel(Draws(5), 8), Draws(6)
    ids, uniform = 1 + draws.integers(7, 6, 3), torch.rand(6, 12, generator=draws.generator, dtype=torch.float64)
    without_padding = sample_tokens(model, ids, torch.ones(6, 3).bool(), uniform, END)
    padded_ids = torch.cat([torch.full((6, 4), END), ids], dim=1)
    mask = torch.arange(7).expand(6, 7) >= 4
    assert torch.equal(sample_tokens(model, padded_ids, mask, uniform, END), without_padding)
    has_ended = (without_padding == END).cumsum(-1) > 0
    assert has_ended.any()
    assert not has_ended.all()
    assert (without_padding[has_ended] == END).all()


@pytest.mark.parametrize(("n", "c"), [(4, 0), (4, 1), (5, 2), (6, 6), (6, 3)])
def test_samples_until_right_equals_the_mean_over_all_orders(n, c):
    orders = list(permutations([True] * c + [False] * (n - c)))
    for limit in range(1, n + 1):
        num_samples = [order.index(True) + 1 if True in order[:limit] else limit for order in orders]
        assert samples_until_right(n, c, limit) == pytest.approx(fmean(num_samples))


@pytest.mark.parametrize("seed", range(3))
def test_dynamic_sampling_keeps_only_groups_with_unequal_rewards_and_reports_the_mean_of_all_rewards(seed):
    pool = PromptPool(Draws(seed), [0.0, 0.2, 0.9, 1.0], 4, (1.0, 0.0), 0.0, torch.float64)
    indices, rewards, mean = dynamic_sampling(pool.sample, torch.arange(150), 16)
    assert len(indices) == 16
    assert (rewards.var(-1) > 0.1).all()
    assert indices.diff().min() > 0
    assert pool.sampled_prompts == list(range(len(pool.sampled_prompts)))
    assert len(pool.sampled_prompts) % 16 == 0
    expected_mean = pool.success_rates[pool.sampled_prompts].mean().item()
    assert abs(mean - expected_mean) < 0.12, "the mean has to include the groups without a spread"


@pytest.mark.parametrize("fault", FAULTS)
def test_name_fault_recognises_the_fault_of_every_log(fault):
    assert [name_fault(log_of_run(fault, seed)) for seed in (7, 8, 9)] == [fault] * 3


def test_a_designed_reward_is_learnt_and_the_plain_one_is_not():
    """The plain reward does not depend on the length, and most completions that work the sum out are long."""
    texts, results = SumCompletions(Draws(1)).generate(40)
    (with_designed_reward,) = after_policy(design_reward(texts, results), (texts, results), {}).values()
    (with_plain_reward,) = after_policy(accuracy_reward(texts, results), (texts, results), {}).values()
    assert with_designed_reward == WORKED_OUT
    assert with_plain_reward == "the sum worked out at great length"
    assert set(results.kinds) == set(range(len(KINDS)))
