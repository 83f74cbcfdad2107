"""The metrics of a step: their names, their values computed a second time from the samples, and seconds by phase."""

import json
import math

import numpy as np
import pytest
import torch

from grpo_lab.base.checks import InputTypeError
from grpo_lab.models.selfcheck import ensure_checked
from grpo_lab.objective.loss import LossMetrics, microbatch_loss
from grpo_lab.rollout.environments import environment
from grpo_lab.rollout.forward import model_logprobs
from grpo_lab.trainer import PolicyOptimizer, accumulate_gradient, loop, rewarding, train
from grpo_lab.trainer import experience as experience_module
from grpo_lab.trainer import metrics as metrics_module
from grpo_lab.trainer.metrics import Clock, UpdateMetrics
from tests.support.file_faults import Killed
from tests.support.kernels import WaitCounter
from tests.support.sampling import scale_hidden
from tests.support.slow_trainer import Recording
from tests.support.small_policy import (
    ROWS,
    length_reward_or_none,
    letter_reward,
    make_config,
    make_policy,
    ragged_experience,
    train_small,
)

PROMISED = {"reward", "reward_std", "frac_reward_zero_std", "kl", "entropy", "clip_ratio/region_mean"}
PROMISED |= {"completions/mean_length", "completions/clipped_ratio", "rewards/letter_reward/mean", "step_time"}
PROMISED |= {"time/rollout", "time/reward", "time/logprobs", "time/update", "nonfinite_steps"}
PROMISED |= {"num_tokens", "sampling/logp_difference_max", "grad_norm", "tokens_per_second", "loss", "learning_rate"}


def test_every_documented_metric_has_the_right_value(monkeypatch):
    recording = Recording(monkeypatch)
    weighted = {"reward_weights": [1.0, 0.5], "num_iterations": 2, "epsilon": 0.05, "max_steps": 3}
    _, history = train_small(
        reward=[letter_reward, length_reward_or_none], beta=0.2, generation_batch_size=12, **weighted
    )
    tokens = 0
    assert [metrics["step"] for metrics in history] == [1, 2, 3]
    for metrics, experience in zip(history, recording.experiences, strict=True):
        assert metrics.keys() >= PROMISED
        rollout = experience.rollout
        ids = [
            [token for token, real in zip(row, mask, strict=True) if real]
            for row, mask in zip(rollout.completion_ids.tolist(), rollout.mask.tolist(), strict=True)
        ]
        lengths, rewarded_lengths = [len(row) for row in ids], [len(row) for row in ids if len(row) > 1]
        letters = letter_reward(None, ids)
        rewards = [x + (0.5 * len(row) if len(row) > 1 else 0) for x, row in zip(letters, ids, strict=True)]
        groups = [rewards[i : i + 4] for i in range(0, 12, 4)]
        cut = [row for row, truncated in zip(ids, rollout.truncated.tolist(), strict=True) if truncated]
        terminated_lengths = [len(row) for row in ids if row not in cut]
        entropies = [x for row, n in zip(rollout.entropy.tolist(), lengths, strict=True) for x in row[:n]]
        tokens += sum(lengths) + 4 * int(rollout.prompt_mask.sum())
        expected = {
            "reward": np.mean(rewards),
            "reward_std": np.std(rewards, ddof=1),
            "frac_reward_zero_std": np.mean([len(set(group)) == 1 for group in groups]),
            "rewards/letter_reward/mean": np.mean(letters),
            "rewards/letter_reward/std": np.std(letters, ddof=1),
            "rewards/length_reward_or_none/mean": np.mean(rewarded_lengths),
            "rewards/length_reward_or_none/std": np.std(rewarded_lengths, ddof=1),
            "completions/mean_length": np.mean(lengths),
            "completions/min_length": min(lengths),
            "completions/max_length": max(lengths),
            "completions/clipped_ratio": len(cut) / 12,
            "completions/mean_terminated_length": np.mean(terminated_lengths) if terminated_lengths else 0.0,
            "entropy": np.mean(entropies),
            "num_tokens": tokens,
        }
        for name, value in expected.items():
            assert metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
        assert metrics["sampling/logp_difference_max"] < 1e-4
        assert metrics["step_time"] > 0 and metrics["tokens_per_second"] > 0 and metrics["grad_norm"] > 0
    assert any(rollout.truncated.any() for rollout in (e.rollout for e in recording.experiences))


def test_metrics_are_written_once_per_step_even_after_a_kill(tmp_path):
    seen = []

    def note(step, metrics):
        seen.append((step, metrics))
        if len(seen) == 3:  # this step is shown, and not saved
            raise Killed

    settings = {"output_dir": str(tmp_path), "report_to": "tensorboard", "max_steps": 4, "save_steps": 2}
    with pytest.raises(Killed):
        train_small(callback=note, **settings)
    _, history = train_small(callback=note, resume_from_checkpoint=True, **settings)
    lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == history
    assert seen[3:] == [(step + 1, metrics) for step, metrics in enumerate(history)][2:]
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    for name, value in history[0].items() - {("step", 1)}:
        events = board.Scalars(name)
        assert [event.step for event in events] == [1, 2, 3, 4]
        assert events[0].value == pytest.approx(value, rel=1e-6)


def test_time_metrics_are_the_seconds_spent_in_each_phase(monkeypatch):
    """The clock advances by 3 per sampling, 5 per rewarding, 1 per forward pass, and 7 per update of the weights."""
    clock = [0.0]

    def takes(owner, name, seconds):
        function = getattr(owner, name)

        def slow(*arguments, **keywords):
            clock[0] += seconds
            return function(*arguments, **keywords)

        monkeypatch.setattr(owner, name, slow)

    monkeypatch.setattr(metrics_module, "synchronized_time", lambda device: clock[0])
    takes(environment, "sample_prompts", 3.0)
    takes(rewarding, "score_completions", 5.0)
    takes(experience_module, "compute_logprobs", 1.0)
    takes(PolicyOptimizer, "step", 7.0)
    # Forward passes: one by the reference, one for the old log-probabilities, and one in each of the two updates.
    _, history = train_small(beta=0.1, num_iterations=2, max_steps=2)
    for metrics in history:
        times = {name: value for name, value in metrics.items() if name.startswith("time/")}
        assert times == {"time/rollout": 3.0, "time/reward": 5.0, "time/logprobs": 4.0, "time/update": 14.0}


def test_logp_difference_max_shows_wrong_log_probabilities_during_a_run(monkeypatch):
    model, tokenizer = make_policy()
    ensure_checked(model)
    hidden = model_logprobs.packed_hidden
    monkeypatch.setattr(model_logprobs, "packed_hidden", lambda *arguments: scale_hidden(0.9, *hidden(*arguments)))
    (metrics,) = train(model, tokenizer, ROWS, letter_reward, make_config(max_steps=1))
    assert metrics["sampling/logp_difference_max"] > 0.01


def test_logp_difference_max_is_nan_if_a_log_probability_is_nan():
    experience = ragged_experience([2, 1], prompt_lengths=(4,), columns=2)
    metrics = UpdateMetrics(experience.loss_mask.sum())
    for row, logp in enumerate([torch.zeros(1, 2), torch.full((1, 2), math.nan)]):
        metrics.add(
            experience[torch.tensor([row])], torch.tensor([True]), logp, torch.zeros(()), LossMetrics({}, set())
        )
    assert math.isnan(metrics.combine()["sampling/logp_difference_max"])
    assert metrics.combine()["sampling/frac_logp_difference"] == 1 / 3, "a NaN outside the mask does not count"


def test_means_over_rows_are_weighted_by_rows_though_a_wrapper_of_the_loss_adds_a_metric():
    experience = ragged_experience([3, 1], prompt_lengths=(4,), columns=3)
    metrics = UpdateMetrics(experience.loss_mask.sum())
    for row, value in enumerate([1.0, 2.0]):
        ours = LossMetrics({"ratio": torch.tensor(value), "kl": torch.tensor(value)}, {"ratio"})
        arguments = (experience[torch.tensor([row])], torch.tensor([True]), torch.zeros(1, 3), torch.zeros(()))
        metrics.add(*arguments, ours.copy() | {"mine": torch.tensor(value)})
        with pytest.raises(InputTypeError, match="expected {}, or a `LossMetrics`"):
            metrics.add(*arguments, {**ours})
    combined = metrics.combine()
    assert (combined["ratio"], combined["kl"], combined["mine"]) == (1.5, 1.25, 1.25)


def test_a_loss_may_return_no_metrics_as_the_assignments_allow(monkeypatch):
    monkeypatch.setattr(loop, "microbatch_loss", lambda *rows, **settings: (microbatch_loss(*rows, **settings)[0], {}))
    model, tokenizer = make_policy()
    (metrics,) = train(model, tokenizer, ROWS, letter_reward, make_config(max_steps=1))
    assert "loss" in metrics and "ratio" not in metrics


def test_metrics_that_are_added_in_place_stay_means_over_rows():
    metrics = both = LossMetrics({"ratio": torch.ones(()), "kl": torch.ones(())}, {"ratio"})
    metrics |= LossMetrics({"kl": torch.zeros(()), "mine": torch.ones(())}, {"mine"})
    assert metrics is both and (set(metrics), metrics.row_mean_names) == ({"ratio", "kl", "mine"}, {"ratio", "mine"})
    metrics |= {"ratio": torch.zeros(())}
    assert metrics.row_mean_names == {"mine"}


def test_metrics_that_are_added_to_a_plain_dict_stay_means_over_rows():
    old_ratio, ratio = torch.zeros(()), torch.ones(())
    metrics = {"mine": old_ratio, "ratio": old_ratio} | LossMetrics({"ratio": ratio, "kl": ratio}, {"ratio"})
    assert isinstance(metrics, LossMetrics) and metrics.row_mean_names == {"ratio"}
    assert metrics == {"mine": old_ratio, "ratio": ratio, "kl": ratio} and [*metrics] == ["mine", "ratio", "kl"]


@pytest.mark.parametrize("microbatch_size", [8, 4, 2])
def test_a_micro_batch_makes_a_gpu_wait_twelve_times_at_most(microbatch_size):
    """Two of the counted waits read lists of row numbers that are on the CPU; metrics are read once per update."""
    cut = {"per_device_train_batch_size": microbatch_size, "gradient_accumulation_steps": 8 // microbatch_size}
    (model, _), config = make_policy(), make_config(**cut)
    experience = ragged_experience([5, 3, 5, 2, 4, 5, 1, 5], columns=5)
    optimizer = PolicyOptimizer(model, config)
    with WaitCounter() as waits:
        accumulate_gradient(model, optimizer, experience, config)
    assert waits.count <= 12 * (8 // microbatch_size) + 3, waits.names


def test_an_inner_phase_is_not_counted_for_the_outer_one():
    readings = iter([0.0, 1.0, 3.0, 10.0, 20.0, 24.0])
    clock = Clock(torch.device("cpu"), read=lambda: next(readings))
    with clock("outer"), clock("inner"):
        pass
    assert clock.totals == {"inner": 2.0, "outer": 8.0}
    with clock("inner"):
        pass
    assert clock.totals == {"inner": 6.0, "outer": 8.0}


def test_a_phase_that_fails_is_counted():
    readings = iter([0.0, 5.0])
    clock = Clock(torch.device("cpu"), read=lambda: next(readings))
    with pytest.raises(ZeroDivisionError), clock("phase"):
        raise ZeroDivisionError
    assert clock.totals == {"phase": 5.0}
