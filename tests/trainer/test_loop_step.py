"""Steps compared with a slow trainer made of loops; micro-batches and rows without gradient change nothing."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from grpo_lab.config import GRPOConfig
from grpo_lab.objective import LOSSES
from grpo_lab.trainer import PolicyOptimizer, accumulate_gradient, collect, completion_logprobs, loop, train
from tests.support import oracles
from tests.support.slow_trainer import Recording, SlowTrainer
from tests.support.small_policy import ROWS, letter_reward, make_config, make_exact, make_policy, same_weights, weights

SEVERAL_UPDATES = {"num_iterations": 2, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
CASES = {
    "dapo": {"temperature": 0.7, "weight_decay": 0.1, "epsilon": 0.01, "epsilon_high": 0.02} | SEVERAL_UPDATES,
    "grpo": {"loss_type": "grpo", "max_grad_norm": 0.05, "adam_beta1": 0.8, "adam_beta2": 0.95},
    "bnpo": {"loss_type": "bnpo", "warmup_steps": 3},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none", "lr_scheduler_type": "cosine"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.02} | SEVERAL_UPDATES,
    "sapo": {"loss_type": "sapo", "num_iterations": 2},
    "luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence", "num_iterations": 2},
    "vespo": {"loss_type": "vespo"} | SEVERAL_UPDATES,
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.05} | SEVERAL_UPDATES,
    "inner steps": {"epsilon": 0.01, "delta": 1.5, "scale_rewards": "batch"} | SEVERAL_UPDATES,
    "frozen reference": {"beta": 0.3, "loss_type": "grpo"} | SEVERAL_UPDATES,
    "refreshed reference": {
        "beta": 0.3,
        "ref_model_sync_steps": 1,
        "use_bias_correction_kl": True,
        "num_iterations": 2,
    },
    "entropy bonus": {"entropy_coef": 0.1, "kl_estimator": "k2", "beta": 0.1} | SEVERAL_UPDATES,
    "truncated masked": {"mask_truncated_completions": True, "advantage": "rloo"},
}


QUICK = ("dapo", "gspo", "frozen reference", "truncated masked")  # the others are for the long tests


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in CASES]
)
def test_two_steps_equal_those_of_the_slow_trainer(name, monkeypatch):
    config = make_config(**CASES[name])
    model, tokenizer = make_policy(seed=1)
    make_exact(model)
    slow = SlowTrainer(copy.deepcopy(model), config)
    recording, weights_after = Recording(monkeypatch), []
    start = weights(model)
    history = train(model, tokenizer, ROWS, letter_reward, config, lambda *_: weights_after.append(weights(model)))
    for step in range(2):
        experience, batches = recording.experiences[step], recording.batches[step]
        check_rewards_and_advantages(experience, config)
        check_batches(batches, config)
        slow.step(step, experience, batches, history[step]["learning_rate"])
        expected = weights(slow.model)
        for parameter, value in weights_after[step].items():
            torch.testing.assert_close(value, expected[parameter], rtol=0, atol=1e-9, msg=f"{parameter} at {step + 1}")
        assert max((expected[parameter] - start[parameter]).abs().max() for parameter in expected) > 1e-3
    if name == "dapo":
        assert max(metrics["clip_ratio/high_mean"] for metrics in history) > 0, "epsilon_high bounds no ratio"


def test_a_replaced_old_logp_is_used_in_all_updates_of_the_step(monkeypatch):
    config = make_config(num_iterations=3)
    model, tokenizer = make_policy(seed=1)
    experience, _ = collect(model, tokenizer, ROWS[:2], letter_reward, config)
    own = replace(experience, old_logp=experience.rollout.logp - 0.1)
    used, accumulate = [], loop.accumulate_gradient

    def spy(model, optimizer, batch, *arguments):
        used.append(torch.equal(batch.old_logp, batch.rollout.logp - 0.1))
        return accumulate(model, optimizer, batch, *arguments)

    monkeypatch.setattr(loop, "accumulate_gradient", spy)
    loop.update(model, PolicyOptimizer(model, config), own, config, 1e-3)
    assert used == [True] * 3


def check_rewards_and_advantages(experience, config):
    rollout = experience.rollout
    ids = [[i for i, real in zip(*row, strict=True) if real]
           for row in zip(rollout.completion_ids.tolist(), rollout.mask.tolist(), strict=True)]  # fmt: skip
    rewards = torch.tensor(letter_reward(None, ids))
    assert torch.equal(experience.rewards, rewards)
    groups = rewards.double().view(-1, config.num_generations)
    rloo = config.advantage == "rloo"
    expected = oracles.rloo_advantages(groups) if rloo else oracles.group_advantages(groups, config.scale_rewards)
    torch.testing.assert_close(experience.advantages.double(), expected.flatten(), rtol=1e-5, atol=1e-5)


def check_batches(batches, config):
    """Each pass over the experience takes every row once."""
    per_pass = len(batches) // config.num_iterations
    for start in range(0, len(batches), per_pass):
        rows = [row for batch in batches[start : start + per_pass] for row in batch]
        assert sorted(rows) == list(range(config.generation_batch_size))
        assert all(len(batch) == config.update_batch_size for batch in batches)


def off_policy_experience(config):
    """Return an experience of an older policy, so that ratios differ from 1 and some are clipped."""
    model, tokenizer = make_policy()
    make_exact(model)
    torch.manual_seed(9)
    experience, _ = collect(model, tokenizer, ROWS[:2], letter_reward, config)
    generator = torch.Generator().manual_seed(4)
    noises = [torch.randn(experience.loss_mask.shape, generator=generator, dtype=torch.float64) * 0.3 for _ in range(2)]
    old_logp, ref_logp = (experience.rollout.logp + noise * experience.loss_mask for noise in noises)
    return model, replace(experience, old_logp=old_logp, ref_logp=ref_logp)


def gradient(model, experience, config):
    model.zero_grad()
    metrics = accumulate_gradient(model, PolicyOptimizer(model, config), experience, config)
    return torch.cat([p.grad.flatten() for p in model.parameters()]), metrics


def config_of_microbatches(loss_type, num_microbatches):
    sizes = {
        "per_device_train_batch_size": 8 // num_microbatches,
        "gradient_accumulation_steps": num_microbatches,
    }
    clip = {"epsilon_high": 0.1} if loss_type == "cispo" else {"epsilon": 0.1}
    clip = {name: value for name, value in clip.items() if name in LOSSES[loss_type].reads}
    return make_config(loss_type=loss_type, beta=0.2, entropy_coef=0.05, **sizes, **clip)


@pytest.mark.parametrize("loss_type", LOSSES)
def test_micro_batch_size_changes_no_gradient_except_with_bnpo(loss_type):
    model, experience = off_policy_experience(config_of_microbatches(loss_type, 1))
    assert len(set(experience.loss_mask.sum(-1).tolist())) > 2, "rows of one length would hide a wrong mean"
    full_gradient, metrics = gradient(model, experience, config_of_microbatches(loss_type, 1))
    for parts in (2, 4):
        split_gradient, split_metrics = gradient(model, experience, config_of_microbatches(loss_type, parts))
        difference = (split_gradient - full_gradient).abs().max() / full_gradient.abs().max()
        if loss_type == "bnpo":
            assert difference > 1e-3, "bnpo averages over the tokens of each micro-batch, by design"
        else:
            assert difference < 1e-10
            assert split_metrics == pytest.approx(metrics, abs=1e-6)


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("loss_type", ["grpo", "luspo"])
def test_metrics_of_sequence_ratios_do_not_depend_on_the_size_of_micro_batches(loss_type, per_token):
    """The ratio is a mean over rows and the KL one over tokens; clip ratios have the shape of the advantages."""

    def config_of(parts):
        sizes = {"per_device_train_batch_size": 8 // parts, "gradient_accumulation_steps": parts}
        return make_config(loss_type=loss_type, importance_sampling_level="sequence", beta=0.2, epsilon=0.1, **sizes)

    model, experience = off_policy_experience(config_of(1))
    if per_token:
        columns = experience.loss_mask.shape[1]
        signs = torch.tensor([1.0, -1.0]).repeat(columns)[:columns]
        experience = replace(experience, advantages=experience.advantages[:, None] * signs)
    (_, metrics), (_, split_metrics) = (gradient(model, experience, config_of(parts)) for parts in (1, 4))
    assert metrics["clip_ratio/region_mean"] > 0 and metrics["ratio"] != 1
    assert split_metrics == pytest.approx(metrics, abs=1e-6)


def equal_rewards_for_strings(completions, completion_ids, prompts, **kwargs):
    """Give equal rewards to the completions of prompts that are strings, which are half of the prompts."""
    scores = letter_reward(completions, completion_ids)
    return [0.1 if isinstance(prompt, str) else score for prompt, score in zip(prompts, scores, strict=True)]


@pytest.mark.parametrize("settings", [{}, SEVERAL_UPDATES, {"loss_type": "grpo"}, {"loss_type": "dr_grpo"}], ids=str)
def test_rows_without_gradient_are_skipped_and_counted_without_an_effect_on_the_update(
    settings, logprob_call_shapes, monkeypatch
):
    outcome = {}
    for every_row in (False, True):
        model, tokenizer = make_policy(seed=1)
        make_exact(model)
        monkeypatch.setattr(GRPOConfig, "needs_every_row", every_row)
        logprob_call_shapes.clear()
        history = train(model, tokenizer, ROWS, equal_rewards_for_strings, make_config(seed=1, **settings))
        outcome[every_row] = (weights(model), history, sum(rows for _, rows, *_ in logprob_call_shapes))
    skipped, full = outcome[False], outcome[True]
    assert [m["rows_without_gradient"] for m in skipped[1]] == [0.5, 0.5]
    assert [m["rows_without_gradient"] for m in full[1]] == [0.0, 0.0]
    assert 2 * skipped[2] == full[2]
    for name, value in skipped[0].items():
        torch.testing.assert_close(value, full[0][name], rtol=0, atol=1e-10)
    for skipped_step, full_step in zip(skipped[1], full[1], strict=True):
        for name in ("loss", "grad_norm", "clip_ratio/region_mean"):
            assert skipped_step[name] == pytest.approx(full_step[name], abs=1e-6)


@pytest.mark.parametrize("old_logp", [-100.0, math.nan])
def test_a_users_old_logp_of_rows_without_gradient_has_no_effect(old_logp):
    """Their log-probabilities are not computed, so that no ratio exists."""
    config = make_config()
    model, experience = off_policy_experience(config)
    experience = replace(experience, ref_logp=None)
    advantages = torch.where(torch.arange(8) % 2 == 0, 0, experience.advantages)
    advantages[1] = 1.0  # at least one row has a gradient
    experience = replace(experience, advantages=advantages)
    skipped = advantages == 0
    expected_experience = replace(experience, old_logp=experience.old_logp.masked_fill(skipped[:, None], 0))
    experience = replace(experience, old_logp=experience.old_logp.masked_fill(skipped[:, None], old_logp))
    expected, expected_metrics = gradient(model, expected_experience, config)
    result, metrics = gradient(model, experience, config)
    assert torch.equal(result, expected) and metrics == expected_metrics and math.isfinite(metrics["ratio"])


def test_a_step_of_equal_rewards_changes_no_weight_and_runs_no_forward_pass(logprob_call_shapes):
    model, tokenizer = make_policy()
    start = weights(model)
    history = train(model, tokenizer, ROWS, lambda completions, **kwargs: [0.7] * len(completions), make_config())
    assert same_weights(weights(model), start) and not logprob_call_shapes
    for metrics in history:
        assert (metrics["loss"], metrics["grad_norm"], metrics["frac_reward_zero_std"]) == (0.0, 0.0, 1.0)
        assert metrics["rows_without_gradient"] == 1.0 and metrics["reward"] == pytest.approx(0.7)


@pytest.mark.parametrize("settings", [{}, SEVERAL_UPDATES, {"gradient_checkpointing": True}], ids=str)
def test_the_first_ratio_is_exactly_one_even_with_dropout_in_the_model(settings, monkeypatch):
    ratios, loss = [], loop.microbatch_loss

    def spy(logp, advantages, mask, *counts, old_logp, **keywords):
        old = logp if old_logp is None else old_logp
        ratios.append((logp - old.detach()).exp()[mask])
        return loss(logp, advantages, mask, *counts, old_logp=old_logp, **keywords)

    monkeypatch.setattr(loop, "microbatch_loss", spy)
    model, tokenizer = make_policy(attention_dropout=0.5)
    history = train(model, tokenizer, ROWS, letter_reward, make_config(temperature=0.8, **settings))
    calls = len(ratios) // 2
    first = 2 if settings == SEVERAL_UPDATES else 1  # micro-batches of the first update
    for step in range(2):
        for ratio in ratios[step * calls : step * calls + first]:
            assert (ratio == 1.0).all()
        assert history[step]["sampling/logp_difference_max"] < 1e-4
    if settings != SEVERAL_UPDATES:
        assert [metrics["ratio"] for metrics in history] == [1.0, 1.0]


def test_equal_advantages_per_token_train_like_one_per_row():
    model, experience = off_policy_experience(config_of_microbatches("dapo", 1))
    of_tokens = replace(experience, advantages=experience.advantages[:, None].repeat(1, experience.loss_mask.shape[1]))
    (expected, metrics), (got, token_metrics) = (
        gradient(model, variant, config_of_microbatches("dapo", 1)) for variant in (experience, of_tokens)
    )
    assert expected.abs().max() > 0 and torch.equal(got, expected) and token_metrics == metrics
    advantages = torch.randn(
        experience.loss_mask.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )
    experience = replace(experience, advantages=advantages)
    whole, _ = gradient(model, experience, config_of_microbatches("dapo", 1))
    in_parts, _ = gradient(model, experience, config_of_microbatches("dapo", 4))
    assert (in_parts - whole).abs().max() < 1e-10 * whole.abs().max()


def test_advantages_of_ones_own_count_where_all_rewards_are_equal():
    """The advantages of the library would be zero, and their rows would be skipped."""
    (model, tokenizer), config = make_policy(), make_config()
    make_exact(model)
    experience, _ = collect(model, tokenizer, ROWS[:2], lambda completions, **_: [0.0] * len(completions), config)
    own = replace(experience, advantages=experience.rewards - 0.5)
    got, metrics = gradient(model, own, config)
    logp, _ = completion_logprobs(model, own, config)
    loss = 0.5 * torch.where(own.loss_mask, (logp - logp.detach()).exp(), 0).sum() / own.loss_mask.sum()
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    assert metrics["loss"] == pytest.approx(0.5) and expected.abs().max() > 1e-3
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)
