"""Tests of the training loop of notebook 03: independent seeds, reproducible runs, and what a batch contains."""

import math

import pytest
import torch

from grpo_lab.toys.sorting import (
    SortingPolicy,
    collect_batch,
    evaluate_sorting,
    exact_reward,
    init_policy,
    make_prompts,
    position_logprobs,
    repaired_reward,
    response_logprobs,
    surrogate_loss,
    train_sorting,
)
from tests.support.agreement import assert_near

PROMPTS = make_prompts(numbers=4, length=2)
SHORT = {
    "rounds": 6, "num_prompts": 4, "num_generations": 3, "num_iterations": 2, "eval_every": 2, "learning_rate": 0.02,
}  # fmt: skip


def generators(*seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def weights_of(run):
    return torch.cat([w.flatten(1) for w in run.policy], dim=1)


def test_the_same_seeds_give_the_same_run():
    first, second = (train_sorting(PROMPTS, seeds=[3, 4], **SHORT) for _ in range(2))
    assert torch.equal(weights_of(first), weights_of(second))
    assert torch.equal(first.losses, second.losses)
    assert all(torch.equal(first.history[name], second.history[name]) for name in first.history)
    assert not torch.equal(weights_of(first)[0], weights_of(first)[1])
    assert first.rounds == [0, 2, 4, 6]
    assert not any(w.requires_grad for w in first.policy)
    assert {values.shape for values in first.history.values()} == {(2, 4)}
    assert first.losses.shape == (2, 3)


@pytest.mark.parametrize("loss", ["naive", "unclipped", "clipped"])
def test_a_sorting_run_does_not_depend_on_the_other_seeds_trained_with_it(loss):
    together = train_sorting(PROMPTS, seeds=[3, 5, 4], loss=loss, **SHORT)
    alone = train_sorting(PROMPTS, seeds=[5], loss=loss, **SHORT)
    assert_near(weights_of(together)[1:2], weights_of(alone), tolerance=1e-4)
    assert_near(together.losses[1:2], alone.losses, tolerance=1e-4)
    for name in alone.history:
        assert_near(together.history[name][1:2], alone.history[name], tolerance=1e-4)


def test_more_frequent_evaluations_change_no_weight_of_a_sorting_run():
    often, seldom = (train_sorting(PROMPTS, seeds=[2], **(SHORT | {"eval_every": n})) for n in (1, 6))
    assert torch.equal(weights_of(often), weights_of(seldom))


def test_one_step_is_one_adam_step_on_the_mean_loss_of_the_seed():
    run = train_sorting(PROMPTS, seeds=[9], **(SHORT | {"rounds": 1, "num_iterations": 1}))
    (generator,) = generators(9)
    policy = init_policy(4, 2, 16, [generator])
    prompts = PROMPTS.train[torch.randint(len(PROMPTS.train), (4,), generator=generator)][None]
    batch = collect_batch(policy, prompts, repaired_reward, "normalised", 3, [generator])
    logp = response_logprobs(position_logprobs(prompts, *policy), batch.responses)
    loss = surrogate_loss(logp.flatten(0, 2), logp.detach().flatten(0, 2), batch.advantages.flatten())
    loss.backward()
    for weight, trained in zip(policy, run.policy, strict=True):
        # Adam's first step has the size of the learning rate, whatever the size of the gradient.
        expected = weight.detach() - 0.02 * weight.grad / (weight.grad.abs() + 1e-8)
        assert_near(trained, expected, tolerance=1e-5)


def test_a_sorting_batch_has_the_logprobs_of_the_sampling_policy_for_its_own_prompts():
    policy, prompts = init_policy(4, 2, 3, generators(0, 1)), torch.stack([PROMPTS.train[:5]] * 2)
    batch = collect_batch(policy, prompts, repaired_reward, "centred", 4, generators(7, 8))
    expected = response_logprobs(position_logprobs(prompts, *policy), batch.responses).detach()
    assert not any(values.requires_grad for values in batch)
    with torch.no_grad():
        policy.decode.mul_(2)  # the batch must not contain views of the parameters
    assert torch.equal(batch.old_logp, expected)
    for s, p, i in [(0, 0, 0), (1, 4, 3), (0, 3, 2), (1, 1, 1)]:
        assert batch.rewards[s, p, i] == repaired_reward(prompts[s, p][None], batch.responses[s, p, i][None])[0]
    assert_near(batch.advantages, batch.rewards - batch.rewards.mean(-1, keepdim=True), tolerance=1e-6)
    assert batch.advantages.abs().max() > 0


def test_metrics_of_a_policy_that_hacks_the_reward():
    """The prompt is (1, 1, 2), and the response always (1, 2, 2)."""
    decode = torch.zeros(1, 3, 4, 4)
    for t, number in enumerate((1, 2, 2)):
        decode[0, t, :, number] = 50.0
    hacking_policy = SortingPolicy(torch.eye(4)[None], torch.eye(4).expand(1, 3, 4, 4), decode)
    metrics = evaluate_sorting(hacking_policy, torch.tensor([[1, 1, 2]]), repaired_reward, generators(0))
    expected = {"reward": 4, "exact": 0, "gamed": 1, "entropy": 0}
    assert {name: round(value.item(), 4) for name, value in metrics.items()} == expected
    uniform_policy = SortingPolicy(torch.eye(4)[None], torch.eye(4).expand(1, 3, 4, 4), torch.zeros(1, 3, 4, 4))
    entropy = evaluate_sorting(uniform_policy, torch.tensor([[1, 1, 2]]), repaired_reward, generators(0))["entropy"]
    assert entropy.item() == pytest.approx(math.log(4))


def test_train_sorting_refuses_wrong_settings_by_name():
    for changes, named in [
        ({"rounds": 0}, "rounds is 0"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"weights": "mean"}, "mode is 'mean'"),
        ({"loss": "mse"}, "loss is 'mse'; expected one of 'naive', 'unclipped', 'clipped'"),
        ({"reward": lambda x, y: exact_reward(x, y).mean()}, r"reward returned shape \(\)"),
    ]:
        with pytest.raises(ValueError, match=named):
            train_sorting(PROMPTS, **(SHORT | changes))
    with pytest.raises(FloatingPointError, match="the loss is nan in round 0"):
        train_sorting(PROMPTS, loss=lambda logp, old, a: logp.sum() * float("nan"), **SHORT)
