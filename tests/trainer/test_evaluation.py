"""Evaluation during training: its steps, its rows, its metrics, and that it does not change the training."""

import math

import pytest
import torch

from grpo_lab.base.checks import RunError
from grpo_lab.rewards import contains_reward
from grpo_lab.rollout import sample_completions
from grpo_lab.trainer import collect, train
from grpo_lab.trainer.evaluation import evaluate_policy, kl_to_reference
from tests.support.small_policy import (
    ROWS,
    length_reward_or_none,
    letter_reward,
    make_config,
    make_policy,
    same_weights,
    weights,
    without_times,
)  # fmt: skip

HELD_OUT = [{"prompt": letter, "answer": letter} for letter in "bcde1"]
MEASUREMENTS = {"eval_steps": 2, "log_completions": True, "logging_steps": 1, "log_kl": True}


def half_marks(completions, completion_ids, **kwargs):
    """Return rewards of 0, 0.5 or 1 that depend on the sampled tokens."""
    return [sum(ids) % 3 / 2 for ids in completion_ids]


def run(**settings):
    """Train, and return the model, its weights after each step, and the history."""
    (model, tokenizer), steps, config = make_policy(), [], make_config(**({"max_steps": 5} | settings))
    held_out = HELD_OUT if config.eval_steps else None
    history = train(model, tokenizer, ROWS, letter_reward, config, lambda *_: steps.append(weights(model)), held_out)
    return model, steps, history


def training_metrics(history):
    measured = ("eval/", "kl")
    return [{k: v for k, v in metrics.items() if not k.startswith(measured)} for metrics in without_times(history)]


def test_evaluations_leave_the_training_the_same_to_the_bit(capsys):
    _, steps, history = run(num_iterations=2, **MEASUREMENTS)
    _, plain_steps, plain = run(num_iterations=2)
    assert all(same_weights(*pair) for pair in zip(steps, plain_steps, strict=True))
    assert training_metrics(history) == without_times(plain)
    assert [metrics["step"] for metrics in history if "eval/reward" in metrics] == [2, 4, 5], "and after the last step"
    assert all(("time/eval" in metrics) == ("eval/reward" in metrics) for metrics in history)
    assert history[0]["kl"] == 0.0 and all(metrics["kl"] > 1e-5 for metrics in history[1:])


def test_a_penalty_lowers_the_reward_and_not_the_accuracy():
    """The accuracy is that of `without_penalty`, which `contains_reward` has, too."""

    def penalised(completions, **kwargs):
        return [0.5 * verdict for verdict in all_right(completions)]

    def all_right(completions, **kwargs):
        return [1.0] * len(completions)

    (model, tokenizer), config = make_policy(), make_config()
    assert evaluate_policy(model, tokenizer, HELD_OUT, penalised, config)["eval/accuracy"] == 0
    penalised.without_penalty = all_right
    metrics = evaluate_policy(model, tokenizer, HELD_OUT, penalised, config)
    assert (metrics["eval/reward"], metrics["eval/accuracy"]) == (0.5, 1)
    texts, answers = ["a long way to 7", "8"], ["7", "7"]
    assert contains_reward(texts, answers) == [1 - 15 * 0.002, -1 - 0.002]
    assert contains_reward.without_penalty(texts, answer=answers) == [1, -1]


def test_evaluation_metrics_are_those_of_the_sampled_completions():
    def sample(step, metrics):
        with torch.random.fork_rng():
            torch.manual_seed(-1 - 3)
            prompts = [row["prompt"] for row in HELD_OUT]
            rollouts[step] = sample_completions(model, tokenizer, prompts, 2, 5, temperature=0.7)

    rollouts, (model, tokenizer) = {}, make_policy()
    sampling = {"num_generations_eval": 2, "per_device_eval_batch_size": 10, "temperature": 0.7}
    config = make_config(max_steps=2, eval_steps=1, seed=3, **sampling)
    functions = [half_marks, length_reward_or_none]
    history = train(model, tokenizer, ROWS, functions, config, sample, HELD_OUT)
    for metrics in history:
        rollout = rollouts[metrics["step"]]
        ids = [row[mask].tolist() for row, mask in zip(rollout.completion_ids, rollout.mask, strict=True)]
        marks, lengths = half_marks(None, ids), [len(row) for row in ids]
        rewarded = [length for length in lengths if length > 1]
        rewards = torch.tensor([x + (n if n > 1 else 0) for x, n in zip(marks, lengths, strict=True)])
        expected = {
            "reward": rewards.mean().item(),
            "reward_std": rewards.std().item(),
            "accuracy": sum(x == 1 for x in marks) / 10,
            "rewards/half_marks/mean": sum(marks) / 10,
            "rewards/length_reward_or_none/mean": sum(rewarded) / len(rewarded),
            "completions/mean_length": sum(lengths) / 10,
            "completions/clipped_ratio": rollout.truncated.float().mean().item(),
        }
        expected |= {"rewards/length_reward_or_none/frac_none": 1 - len(rewarded) / 10} if len(rewarded) < 10 else {}
        got = {name.removeprefix("eval/"): value for name, value in metrics.items() if name.startswith("eval/")}
        assert got == pytest.approx(expected, rel=1e-6)


def test_accuracy_is_the_share_of_ones_if_the_first_reward_is_a_verdict():
    config = make_config(eval_steps=1, num_generations_eval=1)
    for values, accuracy in [
        ([1.0, 0.999, None, 1.0, 0.0], 0.5),
        ([1.0, -1.0, 1.0, 1.0, -1.0], 0.6),
        ([1.0, 1.5, 0.0, 0.0, 0.0], None),
        ([1.0, -0.5, 0.0, 0.0, 0.0], None),
        ([None] * 5, None),
    ]:
        first, second = (lambda *, values=values, **_: values for values in (values, [5.0] * 5))
        metrics = evaluate_policy(*make_policy(), HELD_OUT, [first, second], config)
        assert metrics["eval/accuracy"] == accuracy and metrics["eval/rewards/lambda_2/mean"] == 5.0


@pytest.mark.parametrize("name", ["accuracy", "reward", "completions/mean_length", "rewards/reward/mean"])
def test_a_logged_metric_may_not_have_the_name_of_an_evaluation_metric(name):
    def reward(completions, log_metric, **kwargs):
        log_metric(name, 0.5)
        return [1.0] * len(completions)

    config = make_config(eval_steps=1, num_generations_eval=1)
    with pytest.raises(RunError, match=f"^metrics have '{name}' twice; expected another name in `log_metric`"):
        evaluate_policy(*make_policy(), HELD_OUT, reward, config)


def test_evaluation_settings_that_contradict_each_other_are_refused_before_sampling():
    model, tokenizer = make_policy()
    for held_out, settings, message in [
        (None, {"eval_steps": 2}, "eval_dataset is None; expected one where eval_steps is given"),
        (HELD_OUT, {}, "eval_steps is None; expected one where eval_dataset is given"),
        ([], {"eval_steps": 2}, "eval_dataset is empty; expected at least one row"),
        ([{"prompt": "", "answer": ""}], {"eval_steps": 2}, "eval_dataset row 0: prompt is ''"),
        ([{"prompt": "a"}], {"eval_steps": 2}, r"eval_dataset has the columns \['prompt'\]; expected .*, with answer"),
    ]:
        with pytest.raises(ValueError, match=message):
            train(model, tokenizer, ROWS, lambda **_: 1 / 0, make_config(**settings), eval_dataset=held_out)


def test_the_kl_to_the_reference_is_measured_on_rows_without_gradient_too():
    model, tokenizer = make_policy()
    reference, _ = make_policy(seed=1)
    config = make_config(generation_batch_size=16)
    experience, _ = collect(model, tokenizer, ROWS, lambda completions, **_: [0.5] * len(completions), config)
    assert not experience.advantages.any()
    rollout, values = experience.rollout, []
    for row in range(16):
        prompt = rollout.prompt_of_row[row]
        ids = rollout.prompt_ids[prompt][rollout.prompt_mask[prompt]].tolist()
        completion = rollout.completion_ids[row][rollout.mask[row]].tolist()
        logits = [
            policy(torch.tensor([ids + completion])).logits[0, len(ids) - 1 : -1].log_softmax(-1)
            for policy in (model, reference)
        ]
        for t, token in enumerate(completion):
            d = (logits[1][t, token] - logits[0][t, token]).item()
            values.append(math.exp(d) - 1 - d)
    expected = sum(values) / len(values)
    assert kl_to_reference(model, reference, experience, config) == pytest.approx(expected, rel=1e-4)
