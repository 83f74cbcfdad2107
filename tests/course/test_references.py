"""References that no other part of the package uses, each compared with an independent implementation."""

from itertools import permutations
from statistics import fmean

import pytest
import torch
from transformers.generation import TemperatureLogitsWarper, TopPLogitsWarper

from grpo_lab.course.exercise import Draws
from grpo_lab.course.exercises.nb01 import LAST, Remembering, sample_tokens
from grpo_lab.course.exercises.nb06 import KINDS, WORKED_OUT, World, after_policy, design_reward
from grpo_lab.course.exercises.nb07 import Tasks, dynamic_sampling
from grpo_lab.course.exercises.nb07c import samples_until_right
from grpo_lab.course.exercises.nb09 import FAULTS, _recorded, name_fault
from grpo_lab.rewards import accuracy_reward


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (1.5, 0.8), (1.0, 0.5)])
def test_a_sampler_draws_from_the_distribution_of_transformers(temperature, top_p):
    """From N equally spaced numbers in the place of random ones, each token is drawn N * p times, up to 1."""
    N, model = 2000, Remembering(Draws(3), 9)
    ids = torch.tensor([[LAST, 4, 7]])
    mask = torch.tensor([[False, True, True]])
    logits = TemperatureLogitsWarper(temperature)(None, model(ids, mask)[:, -1])
    p = TopPLogitsWarper(top_p)(None, logits).softmax(-1)[0]
    spaced = (torch.arange(N, dtype=torch.float64)[:, None] + 0.5) / N
    tokens = sample_tokens(model, ids.expand(N, -1), mask.expand(N, -1), spaced, LAST, temperature, top_p)
    shares = torch.bincount(tokens[:, 0], minlength=9) / N
    assert torch.allclose(shares.double(), p, atol=1.5 / N) and (p[shares > 0] > 0).all()


def test_padding_on_the_left_changes_no_completion():
    model, draws = Remembering(Draws(5), 8), Draws(6)
    ids, uniform = 1 + draws.integers(7, 6, 3), torch.rand(6, 12, generator=draws.generator, dtype=torch.float64)
    bare = sample_tokens(model, ids, torch.ones(6, 3).bool(), uniform, LAST)
    padded = torch.cat([torch.full((6, 4), LAST), ids], dim=1)
    mask = torch.arange(7).expand(6, 7) >= 4
    assert torch.equal(sample_tokens(model, padded, mask, uniform, LAST), bare)
    ended = (bare == LAST).cumsum(-1) > 0
    assert ended.any() and not ended.all() and (bare[ended] == LAST).all()


@pytest.mark.parametrize(("n", "c"), [(4, 0), (4, 1), (5, 2), (6, 6), (6, 3)])
def test_samples_until_right_is_the_mean_over_all_orders(n, c):
    orders = list(permutations([True] * c + [False] * (n - c)))
    for limit in range(1, n + 1):
        spent = [order.index(True) + 1 if True in order[:limit] else limit for order in orders]
        assert samples_until_right(n, c, limit) == pytest.approx(fmean(spent))


@pytest.mark.parametrize("seed", range(3))
def test_a_dynamic_batch_has_an_advantage_in_every_group_and_an_honest_mean(seed):
    tasks = Tasks(Draws(seed), [0.0, 0.2, 0.9, 1.0], 4, (1.0, 0.0), 0.0, torch.float64)
    indices, rewards, mean = dynamic_sampling(tasks.sample, torch.arange(150), 16)
    assert len(indices) == 16 and (rewards.var(-1) > 0.1).all() and indices.diff().min() > 0
    assert tasks.sampled == list(range(len(tasks.sampled))) and len(tasks.sampled) % 16 == 0
    truth = tasks.chances[tasks.sampled].mean().item()
    assert abs(mean - truth) < 0.12, "of all prompts, and not of those in the middle"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_read_from_every_log(fault):
    assert [name_fault(_recorded(fault, seed)) for seed in (7, 8, 9)] == [fault] * 3


def test_a_designed_reward_is_learnt_and_the_plain_one_is_not():
    """The plain reward pays long texts as much as short ones, and most right completions are long."""
    texts, problems = World(Draws(1), 0.6, 0.1, (), "", "", "").rows(40)
    (written,) = after_policy(design_reward(texts, problems), (texts, problems), {}).values()
    (plain,) = after_policy(accuracy_reward(texts, problems), (texts, problems), {}).values()
    assert written == WORKED_OUT and plain == "the sum worked out at great length"
    assert set(problems.kinds) == set(range(len(KINDS)))
