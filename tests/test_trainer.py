"""What a run promises: its metrics, its reference, its seeds, its data, and that it stops before it does harm."""

import json
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch

from grpo_lab import experience as experience_module
from grpo_lab import run as run_module
from grpo_lab import trainer
from grpo_lab.trainer import train
from tests.slow_trainer import Recording
from tests.worlds import ROWS, letter_reward, make_config, make_world, same_weights, weights


def run(seed=0, reward=letter_reward, rows=ROWS, world=0, callback=None, **settings):
    model, tokenizer = make_world(seed=world)
    history = train(model, tokenizer, rows, reward, make_config(seed=seed, **settings), callback)
    return weights(model), history


def without_times(history):
    timed = ("step_time", "tokens_per_second")
    return [{name: value for name, value in metrics.items() if name not in timed} for metrics in history]


# --- metrics --------------------------------------------------------------------------------------------------------

PROMISED = {"reward", "reward_std", "frac_reward_zero_std", "kl", "entropy", "clip_ratio/region_mean"}
PROMISED |= {"completions/mean_length", "completions/clipped_ratio", "rewards/letter_reward/mean", "step_time"}
PROMISED |= {"num_tokens", "sampling/logp_difference_max", "grad_norm", "tokens_per_second", "loss", "learning_rate"}


def none_for_some(completions, completion_ids, **kwargs):
    """Applies to completions of more than one token only."""
    return [None if len(ids) == 1 else float(len(ids)) for ids in completion_ids]


def test_every_promised_metric_is_there_with_the_right_value(monkeypatch):
    recording = Recording(monkeypatch)
    weighted = {"reward_weights": [1.0, 0.5], "num_iterations": 2, "epsilon": 0.05, "max_steps": 3}
    _, history = run(reward=[letter_reward, none_for_some], beta=0.2, generation_batch_size=12, **weighted)
    tokens = 0
    assert [metrics["step"] for metrics in history] == [1, 2, 3]
    for metrics, experience in zip(history, recording.experiences, strict=True):
        assert metrics.keys() >= PROMISED | {
            "rewards/none_for_some/mean",
            "rewards/none_for_some/std",
            "nonfinite_steps",
        }
        rollout = experience.rollout
        ids = [
            [token for token, real in zip(row, mask, strict=True) if real]
            for row, mask in zip(rollout.completion_ids.tolist(), rollout.mask.tolist(), strict=True)
        ]
        lengths, given = [len(row) for row in ids], [len(row) for row in ids if len(row) > 1]
        letters = letter_reward(None, ids)
        rewards = [x + (0.5 * len(row) if len(row) > 1 else 0) for x, row in zip(letters, ids, strict=True)]
        groups = [rewards[i : i + 4] for i in range(0, 12, 4)]
        cut = [row for row, truncated in zip(ids, rollout.truncated.tolist(), strict=True) if truncated]
        whole = [len(row) for row in ids if row not in cut]
        entropies = [x for row, n in zip(rollout.entropy.tolist(), lengths, strict=True) for x in row[:n]]
        tokens += sum(lengths) + 4 * int(rollout.prompt_mask.sum())
        want = {
            "reward": np.mean(rewards),
            "reward_std": np.std(rewards, ddof=1),
            "frac_reward_zero_std": np.mean([len(set(group)) == 1 for group in groups]),
            "rewards/letter_reward/mean": np.mean(letters),
            "rewards/letter_reward/std": np.std(letters, ddof=1),
            "rewards/none_for_some/mean": np.mean(given),
            "rewards/none_for_some/std": np.std(given, ddof=1),
            "completions/mean_length": np.mean(lengths),
            "completions/min_length": min(lengths),
            "completions/max_length": max(lengths),
            "completions/clipped_ratio": len(cut) / 12,
            "completions/mean_terminated_length": np.mean(whole) if whole else 0.0,
            "entropy": np.mean(entropies),
            "num_tokens": tokens,
        }
        for name, value in want.items():
            assert metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
        assert metrics["sampling/logp_difference_max"] < 1e-4
        assert metrics["step_time"] > 0 and metrics["tokens_per_second"] > 0 and metrics["grad_norm"] > 0
        assert 0 <= metrics["clip_ratio/region_mean"] <= 1
        assert metrics["kl"] >= 0
    assert any(rollout.truncated.any() for rollout in (e.rollout for e in recording.experiences))
    assert history[-1]["kl"] > 0 and any(metrics["clip_ratio/region_mean"] > 0 for metrics in history)


def test_kl_and_clip_ratio_are_those_of_the_tokens(monkeypatch):
    """Two updates a step: the mean over both of the means over the tokens."""
    losses, policy_loss = [], trainer.policy_loss

    def spy(logp, advantages, mask, old_logp=None, ref_logp=None, **keywords):
        old = logp.detach() if old_logp is None else old_logp
        ratio, difference = (logp.detach() - old).exp()[mask], (ref_logp - logp.detach())[mask]
        pushed = advantages[:, None].expand(mask.shape)[mask]
        clipped = ((ratio < 0.9) & (pushed < 0)) | ((ratio > 1.1) & (pushed > 0))
        losses.append((difference.exp() - difference - 1, clipped.float()))
        return policy_loss(logp, advantages, mask, old_logp=old_logp, ref_logp=ref_logp, **keywords)

    monkeypatch.setattr(trainer, "policy_loss", spy)
    parts = {"num_iterations": 2, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    _, history = run(beta=0.1, epsilon=0.1, max_steps=1, **parts)
    updates = [losses[:4], losses[4:]]
    for name, which in (("kl", 0), ("clip_ratio/region_mean", 1)):
        want = np.mean([torch.cat([part[which] for part in update]).mean().item() for update in updates])
        assert history[0][name] == pytest.approx(want, rel=1e-4, abs=1e-7)


def test_metrics_reach_file_callback_and_tensorboard_alike(tmp_path):
    seen = []
    _, history = run(
        output_dir=str(tmp_path / "out"), report_to="tensorboard", max_steps=3, callback=lambda *pair: seen.append(pair)
    )
    lines = (tmp_path / "out" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == history
    assert seen == [(step + 1, metrics) for step, metrics in enumerate(history)]
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "out" / "tensorboard")).Reload()
    for name, value in history[0].items():
        events = board.Scalars(name)
        assert [event.step for event in events] == [1, 2, 3]
        assert events[0].value == pytest.approx(value, rel=1e-6)


# --- the reference --------------------------------------------------------------------------------------------------


def watch_reference(monkeypatch, policy):
    """The weights that each scoring by a model other than the policy was made with."""
    seen, score_all = [], trainer.score_all

    def spy(model, experience, config):
        if model is not policy:
            seen.append((weights(model), model))
        return score_all(model, experience, config)

    monkeypatch.setattr(trainer, "score_all", spy)
    return seen


@pytest.mark.parametrize("every", [None, 1, 2, 3])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_the_reference_is_frozen_or_refreshed_at_the_right_steps(every, device, monkeypatch):
    model, tokenizer = make_world()
    seen, policy = watch_reference(monkeypatch, model), [weights(model)]
    config = make_config(beta=0.1, max_steps=5, ref_model_sync_steps=every, ref_model_device=device)
    train(model, tokenizer, ROWS, letter_reward, config, lambda *_: policy.append(weights(model)))
    assert len(seen) == 5 and len({id(reference) for _, reference in seen}) == 1
    for step, (scored_with, _) in enumerate(seen):
        taken_at = 0 if every is None else step - step % every
        assert same_weights(scored_with, policy[taken_at])
        assert step == 0 or not same_weights(scored_with, policy[step]) or taken_at == step
    reference = seen[0][1]
    addresses = {p.data_ptr() for p in model.parameters()}
    assert not any(p.requires_grad or p.data_ptr() in addresses for p in reference.parameters())
    assert not any(same_weights(one, other) for one, other in pairwise(policy))


def test_the_first_kl_is_zero_and_a_refresh_brings_it_back_to_zero():
    _, history = run(beta=0.1, max_steps=4, ref_model_sync_steps=2)
    kl = [metrics["kl"] for metrics in history]
    assert kl[0] < 1e-9 and kl[2] < 1e-9 and kl[1] > 1e-5 and kl[3] > 1e-5


# --- what goes wrong ------------------------------------------------------------------------------------------------


def spoil(monkeypatch, calls, value=float("nan")):
    """Make the loss of these calls not finite, its gradient with it."""
    count, policy_loss = iter(range(1000)), trainer.policy_loss

    def spoilt(*arguments, **keywords):
        loss, metrics = policy_loss(*arguments, **keywords)
        return loss * value if next(count) in calls else loss, metrics

    monkeypatch.setattr(trainer, "policy_loss", spoilt)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_skipped_counted_and_forgotten(value, monkeypatch):
    spoil(monkeypatch, {1, 2, 4}, value)
    after = []
    model, tokenizer = make_world()
    history = train(
        model, tokenizer, ROWS, letter_reward, make_config(max_steps=6), lambda *_: after.append(weights(model))
    )
    moved = [not same_weights(one, other) for one, other in pairwise(after)]
    assert moved == [False, False, True, False, True]
    assert [metrics["nonfinite_steps"] for metrics in history] == [0, 1, 2, 2, 3, 3]
    assert all(value.isfinite().all() for value in after[-1].values())


def test_a_gradient_that_is_not_finite_is_skipped_although_the_loss_is_finite():
    model, tokenizer = make_world()
    before = weights(model)
    parameter = next(model.parameters())
    parameter.register_hook(lambda gradient: gradient / 0)
    history = train(model, tokenizer, ROWS, letter_reward, make_config(max_steps=2))
    assert same_weights(weights(model), before) and history[-1]["nonfinite_steps"] == 2


def test_repeated_non_finite_losses_stop_the_run_with_the_weights_intact(monkeypatch):
    spoil(monkeypatch, set(range(2, 100)))
    model, tokenizer = make_world()
    after = []
    with pytest.raises(RuntimeError, match="2 updates in a row were not finite .*max_nonfinite_steps"):
        train(
            model, tokenizer, ROWS, letter_reward, make_config(max_steps=9, max_nonfinite_steps=2),
            lambda *_: after.append(weights(model)),
        )  # fmt: skip
    assert len(after) == 3, "two good steps and a skipped one"
    assert same_weights(weights(model), after[1])
    assert all(value.isfinite().all() for value in after[1].values())


def broken_reward(completions, **kwargs):
    return [float("nan")] * len(completions)


def test_a_reward_that_is_not_a_number_is_an_error_that_names_the_function():
    with pytest.raises(ValueError, match="reward function 'broken_reward' returned nan for row 0"):
        run(reward=[letter_reward, broken_reward])


def test_completions_without_any_reward_are_left_out(monkeypatch):
    """None from every function: no push, and no part in what the others of the group are compared with."""
    recording = Recording(monkeypatch)
    with pytest.warns(RuntimeWarning, match="every reward function .* returned None"):
        _, history = run(reward=none_for_some, world=1, max_steps=3)
    left_out = 0
    for experience, metrics in zip(recording.experiences, history, strict=True):
        for group, advantages, active in zip(
            experience.rewards.view(-1, 4),
            experience.advantages.view(-1, 4),
            experience.active.view(-1, 4),
            strict=True,
        ):
            scored = [x for x in group.tolist() if x == x]
            std = np.std(scored, ddof=1) if len(scored) > 1 else 0.0
            want = [(x - np.mean(scored)) / (std + 1e-4) if x == x and std else 0.0 for x in group.tolist()]
            assert advantages.tolist() == pytest.approx(want, abs=1e-5)
            assert active.tolist() == [x != 0 for x in want]
            left_out += 4 - len(scored)
        assert metrics["reward"] == pytest.approx(np.nanmean(experience.rewards.numpy()))
    assert left_out > 0


@pytest.mark.parametrize("settings", [{"scale_rewards": "batch"}, {"scale_rewards": "none"}, {"advantage": "rloo"},
                                      {"advantage": "none"}, {"advantage": "best_of_group"}], ids=str)  # fmt: skip
def test_leaving_out_holds_for_every_comparison(settings):
    nan = float("nan")
    rewards = torch.tensor([1.0, nan, 3.0, 4.0, nan, nan, 2.0, nan])
    advantages = experience_module.compute_advantages(rewards, make_config(**settings)).tolist()
    alone = 2.0 if settings.get("advantage") == "none" else 0.0
    first = {
        "batch": [(x - 8 / 3) / (np.std([1, 3, 4, 2], ddof=1) + 1e-4) for x in (1, 3, 4)],
        "none": [x - 8 / 3 for x in (1, 3, 4)],
    }.get(settings.get("scale_rewards"))
    first = first or {"rloo": [-2.5, 0.5, 2.0], "none": [1, 3, 4], "best_of_group": [0, 0, 4]}[settings["advantage"]]
    assert advantages == pytest.approx([first[0], 0, first[1], first[2], 0, 0, alone, 0], abs=1e-5)


def test_nothing_scored_at_all_is_a_step_without_movement():
    with pytest.warns(RuntimeWarning, match="every reward function"):
        after, history = run(reward=lambda completions, **kwargs: [None] * len(completions), disable_tqdm=False)
    assert same_weights(after, weights(make_world()[0]))
    assert history[0]["reward"] is None and history[0]["frac_reward_zero_std"] == 1.0


# --- seeds, and the caller's own chance -----------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_numbers_and_another_one_others():
    torch.manual_seed(1)
    weights_a, history_a = run(seed=5)
    torch.manual_seed(2)
    weights_b, history_b = run(seed=5)
    weights_c, history_c = run(seed=6)
    assert same_weights(weights_a, weights_b) and without_times(history_a) == without_times(history_b)
    assert not same_weights(weights_a, weights_c) and without_times(history_a) != without_times(history_c)


def test_the_callers_random_state_and_mode_are_untouched(tmp_path):
    torch.manual_seed(11)
    model, tokenizer = make_world()
    model.train()
    before = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
    train(model, tokenizer, ROWS, letter_reward, make_config(output_dir=str(tmp_path / "run"), beta=0.1))
    train(
        model, tokenizer, ROWS, letter_reward,
        make_config(output_dir=str(tmp_path / "run"), beta=0.1, resume_from_checkpoint=True),
    )  # fmt: skip
    assert torch.equal(torch.get_rng_state(), before[0]) and model.training
    assert str(np.random.get_state()) == before[1]  # noqa: NPY002


def test_every_epoch_takes_every_row_once_in_an_order_of_its_own(monkeypatch):
    drawn = []
    rows = [{"prompt": letter, "number": i} for i, letter in enumerate("abcdef")]

    def note(completions, number, **kwargs):
        drawn.append(number[::4])
        return letter_reward(completions, **kwargs)

    run(rows=rows, reward=note, max_steps=9, max_completion_length=1)
    flat = [number for pair in drawn for number in pair]
    epochs = [tuple(flat[i : i + 6]) for i in range(0, 18, 6)]
    assert all(sorted(epoch) == list(range(6)) for epoch in epochs) and len(set(epochs)) == 3
    drawn.clear()
    run(rows=rows, reward=note, max_steps=3, seed=1, max_completion_length=1)
    assert [number for pair in drawn for number in pair] != list(epochs[0])


# --- prompts and data -----------------------------------------------------------------------------------------------


def test_reward_functions_get_everything_in_the_form_of_the_prompt():
    calls = []

    def note(prompts, completions, completion_ids, answer, **kwargs):
        calls.append((prompts, completions, completion_ids, answer, kwargs))
        return [0.0] * len(completions)

    run(reward=note, max_steps=2)
    answers = {str(row["prompt"]): row["answer"] for row in ROWS}
    tokenizer = make_world()[1]
    for prompts, completions, completion_ids, answer, rest in calls:
        assert {len(x) for x in (prompts, completions, completion_ids, answer)} == {8} and not rest
        for prompt, completion, ids, expected in zip(prompts, completions, completion_ids, answer, strict=True):
            text = completion if isinstance(prompt, str) else completion[0]["content"]
            assert isinstance(prompt, str) or (len(completion) == 1 and completion[0]["role"] == "assistant")
            assert text == tokenizer.decode(ids, skip_special_tokens=True) and 1 <= len(ids) <= 5
            assert expected == answers[str(prompt)]
        assert prompts[:4] == [prompts[0]] * 4 and prompts[4:] == [prompts[4]] * 4
    assert {type(prompt) for prompts, *_ in calls for prompt in prompts} == {str, list}


@pytest.mark.parametrize("prompts", ["strings", "messages"])
def test_a_datasets_dataset_gives_the_same_run_as_a_list(prompts):
    datasets = pytest.importorskip("datasets")
    rows = [row for row in ROWS if isinstance(row["prompt"], str) == (prompts == "strings")]
    after, history = run(rows=rows)
    after_dataset, history_dataset = run(rows=datasets.Dataset.from_list(rows))
    assert same_weights(after, after_dataset) and without_times(history) == without_times(history_dataset)


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([], ValueError, "dataset is empty"),
        ([{"question": "a"}], ValueError, "dataset row 0 has no 'prompt'; its columns are \\['question'\\]"),
        ([{"prompt": "a"}, {"prompt": "b", "answer": 1}], ValueError, "dataset row 1 has the columns"),
        (["a"], TypeError, "dataset row 0 is 'a'; a dict with a 'prompt' is needed"),
        ([{"prompt": ""}], ValueError, "prompt is ''"),
        ([{"prompt": "a", "completions": "b"}], ValueError, "completions"),
    ],
)
def test_a_wrong_dataset_is_named(rows, error, message):
    with pytest.raises(error, match=message):
        run(rows=rows)


def test_a_generator_is_refused():
    """Two answers are possible: the trainer's own, and that of the run-time checks of the test suite."""
    with pytest.raises(TypeError, match="dataset"):
        run(rows=iter(ROWS))


# --- precision ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_under_autocast_sampler_scorer_and_reference_all_compute_alike(name, dtype, monkeypatch):
    seen, score = [], experience_module.score_logprobs

    def spy(*arguments, **keywords):
        seen.append(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None)
        return score(*arguments, **keywords)

    monkeypatch.setattr(experience_module, "score_logprobs", spy)
    few = {"num_iterations": 2, "beta": 0.1, "learning_rate": 1e-6}
    after, history = run(**{name: True}, **few)
    plain, _ = run(**few)
    half = len(seen) // 2
    assert set(seen[:half]) == {dtype} and set(seen[half:]) == {None}
    assert all(value.dtype == torch.float32 for value in after.values())
    assert history[0]["sampling/logp_difference_max"] < 0.1, "sampled in half precision, scored in half precision"
    _, first = run(beta=0.1, max_steps=1, **{name: True})
    assert first[0]["kl"] == 0.0, "the reference too: else the KL would be that of the rounding"
    assert history[-1]["nonfinite_steps"] == 0
    start = weights(make_world()[0])
    moved = sum((plain[k] - start[k]).abs().sum() for k in plain)
    assert sum((after[k] - plain[k]).abs().sum() for k in plain) < 0.3 * moved, "the same way, roughly"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_train(dtype):
    model, tokenizer = make_world()
    model.to(dtype)
    before = weights(model)
    history = train(model, tokenizer, ROWS, letter_reward, make_config(beta=0.05))
    assert all(value.dtype == dtype and value.isfinite().all() for value in weights(model).values())
    assert not same_weights(before, weights(model))
    assert history[-1]["nonfinite_steps"] == 0 and history[0]["sampling/logp_difference_max"] < 0.1


# --- the run around it ----------------------------------------------------------------------------------------------


def test_no_steps_no_history():
    after, history = run(max_steps=0)
    assert history == [] and same_weights(after, weights(make_world()[0]))


def test_a_missing_tensorboard_is_named_and_costs_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    model, tokenizer = make_world()
    config = make_config(output_dir=str(tmp_path), report_to="tensorboard")
    with pytest.raises(ImportError, match="pip install tensorboard"):
        train(model, tokenizer, ROWS, letter_reward, config)
    monkeypatch.undo()
    config = make_config(output_dir=str(tmp_path))
    assert len(train(model, tokenizer, ROWS, letter_reward, config)) == 2, "the folder is still free"


def test_the_progress_bar_shows_reward_and_length(capsys):
    _, history = run(disable_tqdm=False)
    shown = capsys.readouterr().err
    assert f"reward={history[-1]['reward']:.3f}" in shown and "2/2" in shown and "length=" in shown


def test_dropout_is_silenced_wherever_it_sits():
    model, _ = make_world(attention_dropout=0.5)
    model.extra = torch.nn.Dropout(0.3)
    run_module._silence_dropout(model)
    assert model.extra.p == 0 and all(layer.self_attn.attention_dropout == 0 for layer in model.base_model.layers)
