"""Every count, mean and share of an evaluation, for completions whose texts and rewards are known."""

import json

import pytest
import torch

from grpo_lab.base.checks import RunError
from grpo_lab.evaluate import evaluate, evaluation_metrics, pass_at_k, wilson_interval
from grpo_lab.rewards import accuracy_reward
from grpo_lab.rewards.scoring import Rewards
from grpo_lab.trainer.evaluation import ScoredCompletions
from grpo_lab.trainer.metrics import frac_equal_rewards
from tests.support.planted_texts import PLANTED_ROWS, plant_texts
from tests.support.small_policy import make_policy


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
