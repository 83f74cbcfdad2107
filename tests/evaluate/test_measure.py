"""Evaluations and records of sampled completions, each metric for known texts, and the probability of thinking."""

import json

import pytest
import torch

from grpo_lab.base.checks import RunError
from grpo_lab.evaluate import (
    evaluate,
    evaluation_metrics,
    pass_at_k,
    sample_records,
    thinking_probability,
    wilson_interval,
)
from grpo_lab.models import load_policy
from grpo_lab.rewards import accuracy_reward
from grpo_lab.rewards.scoring import Rewards
from grpo_lab.rollout import sample_completions
from grpo_lab.tasks import addition_problems
from grpo_lab.trainer import sample_and_reward
from grpo_lab.trainer.evaluation import ScoredCompletions
from grpo_lab.trainer.metrics import frac_equal_rewards
from tests.support.planted_texts import PLANTED_ROWS, TEXTS, plant_texts
from tests.support.small_policy import ROWS, make_policy


def test_reward_weights_give_the_weighted_reward_and_all_samples(monkeypatch):
    plant_texts(monkeypatch)

    def length(completions, **columns):
        return [None if not text else float(len(text)) for text in completions]

    measure = {"num_generations": 4, "max_completion_length": 3, "reward_funcs": [accuracy_reward, length]}
    scored = sample_and_reward(*make_policy(), PLANTED_ROWS, **measure, reward_weights=[1.0, 0.5])
    result, samples = evaluation_metrics(scored, 4, has_reward_weights=True), sample_records(PLANTED_ROWS, scored)
    assert result == evaluate(*make_policy(), PLANTED_ROWS, **measure, reward_weights=[1.0, 0.5])
    planted_texts = [text for texts in TEXTS.values() for text in texts]
    assert [sample["completion"] for sample in samples] == planted_texts
    assert [sample["problem"] for sample in samples] == [0] * 4 + [1] * 4
    assert [sample["prompt"] for sample in samples] == ["a"] * 4 + ["f"] * 4
    for sample, right in zip(samples, [1, 1, 0, 0, 0, 0, 1, 0], strict=True):
        text = sample["completion"]
        assert sample["rewards"] == {"accuracy_reward": right, "length": float(len(text)) if text else None}
        assert sample["reward"] == right + 0.5 * len(text)
        assert 1 <= sample["length"] <= 3
    assert result["reward"] == pytest.approx(sum(sample["reward"] for sample in samples) / 8)
    assert "reward" not in evaluate(*make_policy(), PLANTED_ROWS, **measure)
    assert json.loads(json.dumps(samples)) == samples


def test_evaluate_counts_the_end_token_and_restores_the_random_state():
    model, tokenizer = make_policy()
    model.train()
    torch.manual_seed(7)
    prompts = [row["prompt"] for row in ROWS]
    lengths = sample_completions(model, tokenizer, prompts, 4, 6).mask.sum(-1).float().mean().item()
    state = torch.get_rng_state()

    def mean_length(seed):
        measure = {"num_generations": 4, "max_completion_length": 6, "seed": seed}
        return evaluate(model, tokenizer, ROWS, **measure)["mean_length"]

    assert mean_length(7) == pytest.approx(lengths)
    assert len({mean_length(seed) for seed in range(4)}) > 1
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    with pytest.raises(ValueError, match="rows is empty"):
        evaluate(*make_policy(), [])
    with pytest.raises(ValueError, match="num_generations is 0"):
        evaluate(*make_policy(), ROWS, num_generations=0)


def test_the_thinking_probability_is_the_share_of_drawn_answers_that_begin_so():
    """For the tiny model and prompts of different lengths, it is the mean of the softmax over prompts."""
    model, tokenizer = load_policy("tiny")
    rows = [*addition_problems("test", 3, seed=1), {"prompt": [{"role": "user", "content": "你好"}]}]
    (think,) = tokenizer("<think>", add_special_tokens=False).input_ids
    expected = []
    for row in rows:
        ids = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            expected.append(model(ids).logits[0, -1].double().softmax(-1)[think].item())
    assert max(expected) > 3 * min(expected), "the prompts differ in it"
    for batch_size in (1, 2, 512):
        measured = thinking_probability(model, tokenizer, rows, batch_size=batch_size)
        assert measured == pytest.approx(sum(expected) / 4, rel=1e-5)
    with pytest.raises(ValueError, match="tokenizer writes '<think>' as 0 tokens; expected one"):
        thinking_probability(*make_policy(), rows)
    with pytest.raises(ValueError, match="rows is empty"):
        thinking_probability(model, tokenizer, [])


def test_metrics_of_planted_completions(monkeypatch):
    plant_texts(monkeypatch)
    counted = {"num_generations": 4, "max_completion_length": 3}
    result = evaluate(*make_policy(), PLANTED_ROWS, **counted, batch_size=1)
    assert result["accuracy"] == evaluate(*make_policy(), PLANTED_ROWS, **counted)["accuracy"]
    assert list(result) == [
        "accuracy", "accuracy_ci95", "pass_at_k", "rewards/accuracy_reward/mean", "frac_reward_zero_std", "mean_length",
        "format_rate", "think_rate", "n", "num_generations",
    ]  # fmt: skip
    assert result["accuracy"] == 3 / 8, "the first problem has two right ones, the second one"
    assert result["accuracy_ci95"] == wilson_interval(3 / 8, 2), "a trial is a problem"
    expected = {k: (pass_at_k(4, 2, k) + pass_at_k(4, 1, k)) / 2 for k in (1, 2, 4)}
    assert result["pass_at_k"] == {str(k): pytest.approx(value) for k, value in expected.items()}
    assert result["format_rate"] == 3 / 8
    assert result["think_rate"] == 3 / 8
    assert 1 <= result["mean_length"] <= 3
    assert (result["n"], result["num_generations"]) == (2, 4)
    json.dumps(result)


@pytest.mark.filterwarnings("ignore:every reward function .* returned None")
def test_frac_reward_zero_std_and_accuracy_of_groups_with_half_marks():
    """For two problems with two completions each; rewards of 0.5 and 0 differ, though neither means right."""
    for rewards, share in [
        ([0.0, 0.0, 1.0, 1.0], 1.0),
        ([0.0, 1.0, 1.0, 1.0], 0.5),
        ([0.5, 0.0, 0.0, 0.5], 0.0),
        ([None, None, None, 1.0], 1.0),
    ]:
        measure = {
            "num_generations": 2,
            "max_completion_length": 2,
            "reward_funcs": lambda *_, marks=rewards, **__: marks,
        }
        result = evaluate(*make_policy(), PLANTED_ROWS, **measure)
        assert result["frac_reward_zero_std"] == share
        assert result["accuracy"] == rewards.count(1.0) / (4 - rewards.count(None))
        assert list(result["pass_at_k"]) == ["1", "2"][: 1 if None in rewards else 2]
    result = evaluate(*make_policy(), PLANTED_ROWS, num_generations=1, max_completion_length=2)
    assert result["frac_reward_zero_std"] is None
    assert json.loads(json.dumps(result)) == result


def test_frac_reward_zero_std_is_of_the_total_reward_as_in_training():
    """Two problems with two completions each: the first reward alone would give 1 and 0."""
    first, style = torch.tensor([1.0, 1.0, 0.0, 1.0]), torch.tensor([0.0, 1.0, 1.0, 0.0])
    rewards = Rewards(first + style, torch.stack([first, style], 1), ["accuracy", "style"])
    scored = ScoredCompletions([""] * 4, rewards, torch.ones(4), torch.zeros(4).bool(), first, {})
    assert evaluation_metrics(scored, 2)["frac_reward_zero_std"] == 0.5
    in_training = frac_equal_rewards(rewards.total.reshape(2, 2))
    assert in_training == 0.5
    unequal = scored._replace(rewards=rewards._replace(total=first + 2 * style))
    assert evaluation_metrics(unequal, 2)["frac_reward_zero_std"] == 0.0
    no_spread = scored._replace(rewards=rewards._replace(total=torch.tensor([2.0, 2.0, torch.nan, 1.0])))
    assert evaluation_metrics(no_spread, 2)["frac_reward_zero_std"] == 1.0


def test_evaluate_gives_no_accuracy_for_a_reward_on_another_scale(monkeypatch):
    plant_texts(monkeypatch)

    def marks(completions, **columns):
        return [1.0, 7.0, 0.0, 10.0] * (len(completions) // 4)

    def nowhere(completions, **columns):
        return [None] * len(completions)

    measure = {"num_generations": 4, "max_completion_length": 3, "reward_funcs": [marks, accuracy_reward, nowhere]}
    result = evaluate(*make_policy(), PLANTED_ROWS, **measure)
    assert result["accuracy"] is result["accuracy_ci95"] is result["pass_at_k"] is None
    means = {name: value for name, value in result.items() if name.startswith("rewards/")}
    expected = {"rewards/marks/mean": 4.5, "rewards/accuracy_reward/mean": 3 / 8, "rewards/nowhere/mean": None}
    expected["rewards/nowhere/frac_none"] = 1.0  # the other two functions apply to every completion
    assert means == expected
    assert json.dumps(result, allow_nan=False)


@pytest.mark.parametrize("name", ["accuracy", "accuracy_ci95", "think_rate", "n"])
def test_log_metric_refuses_names_of_evaluation_metrics(name):
    def reward(completions, log_metric, **kwargs):
        log_metric(name, 0.5)
        return [1.0] * len(completions)

    measure = {"num_generations": 1, "max_completion_length": 2, "reward_funcs": reward}
    with pytest.raises(RunError, match=f"^metrics have '{name}' twice; expected another name in `log_metric`"):
        evaluate(*make_policy(), PLANTED_ROWS, **measure)


def test_evaluation_metrics_of_scored_completions():
    """Three problems with two completions each; the second reward does not apply to one completion."""
    right = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 1.0])
    style = torch.tensor([0.5, 0.5, 0.25, torch.nan, 1.0, 0.75])
    scored = ScoredCompletions(
        texts=["<think>a</think><answer>1</answer>", "", "x", "<answer>2</answer>", "<think>b</think>", "3"],
        rewards=Rewards(right + 2 * style.nan_to_num(0), torch.stack([right, style], 1), ["accuracy", "style"]),
        lengths=torch.tensor([4, 1, 2, 3, 6, 2]),
        truncated=torch.zeros(6, dtype=torch.bool),
        correctness=right,
        logged_metrics={"logged/by_a_reward": 0.125},
    )
    expected = {
        "accuracy": 0.5,
        "accuracy_ci95": wilson_interval(0.5, 3),
        "pass_at_k": {"1": pytest.approx(0.5), "2": pytest.approx(2 / 3)},
        "rewards/accuracy/mean": 0.5,
        "rewards/style/mean": pytest.approx(0.6),
        "rewards/style/frac_none": pytest.approx(1 / 6),
        "logged/by_a_reward": 0.125,
        "frac_reward_zero_std": 0.0,  # no problem has equal totals, though two have equal first rewards
        "mean_length": 3.0,
        "format_rate": pytest.approx(1 / 6),
        "think_rate": pytest.approx(2 / 6),
        "n": 3,
        "num_generations": 2,
    }
    assert evaluation_metrics(scored, 2) == expected
    assert evaluation_metrics(scored, 2, has_reward_weights=True) == expected | {"reward": pytest.approx(1.5)}
