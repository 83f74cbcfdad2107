"""Every kind of log gives the same rows under the same names, and other sources are refused by name."""

import json
import math

import pytest

from grpo_lab.base.checks import InputError
from grpo_lab.base.files import METRICS_FILE, SETTINGS_FILE
from grpo_lab.diagnose.conditions import CONDITIONS
from grpo_lab.diagnose.logs import (
    Log,
    MissingMetric,
    is_solved,
    last_rewards,
    read_log,
    reward_mean_metrics,
    trend,
    updates_per_rollout,
    usually_above,
)
from grpo_lab.diagnose.rules import RULES

ROWS = [{"step": step, "reward": step / 4, "entropy": 1.0, "eval/reward": 0.5 * step} for step in (1, 2, 3)]


def write(path, rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def by_trl(rows: list[dict]) -> list[dict]:
    """Make a log in transformers' form, with separate rows for evaluations and a summary at the end."""
    trained = [{"step": r["step"], "epoch": 0.1, "reward": r["reward"], "entropy": 1.0} for r in rows]
    held_out = [{"step": r["step"], "eval_reward": r["eval/reward"]} for r in rows]
    pairs = [row for pair in zip(trained, held_out, strict=True) for row in pair]
    return [*pairs, {"step": rows[-1]["step"], "train_runtime": 9.0}]


def known_columns(log: Log) -> list[dict]:
    return [{name: row[name] for name in ROWS[0] if name in row} for row in log.rows]


def test_read_log_of_our_folder_gives_rows_and_settings(tmp_path):
    assert (METRICS_FILE, SETTINGS_FILE) == ("metrics.jsonl", "grpo_config.json")
    write(tmp_path / METRICS_FILE, [*ROWS[:2], ROWS[2] | {"loss": None, "warning": "words are no numbers"}])
    (tmp_path / SETTINGS_FILE).write_text('{"precision": "fp16", "num_iterations": 2}', encoding="utf-8")
    log = read_log(tmp_path, {"precision": "fp32"})
    assert known_columns(log) == ROWS and log.name == str(tmp_path)
    assert log.settings == {"precision": "fp32", "num_iterations": 2}
    assert math.isnan(log.rows[2]["loss"]) and "warning" not in log.rows[2]
    assert known_columns(read_log(tmp_path / METRICS_FILE)) == ROWS


def test_the_log_of_trl_is_read_as_a_list_as_a_file_and_from_the_newest_checkpoint(tmp_path):
    history = by_trl(ROWS)
    assert known_columns(read_log(history)) == ROWS
    for number, rows in ((2, history[:4]), (10, history)):
        folder = tmp_path / f"checkpoint-{number}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": rows}), encoding="utf-8")
    assert known_columns(read_log(tmp_path)) == ROWS
    assert known_columns(read_log(tmp_path / "checkpoint-2")) == ROWS[:2]


def test_a_last_line_that_was_cut_is_left_out_and_a_line_may_hold_any_letter(tmp_path):
    whole = "\n".join(json.dumps(row | {"said": "a\u2028b"}, ensure_ascii=False) for row in ROWS).encode()
    for text in (whole, whole + b'\n{"step": 9, "rew', whole + '\n{"step": 9, "said": "答'.encode()[:-1]):
        (tmp_path / "metrics.jsonl").write_bytes(text)
        assert known_columns(read_log(tmp_path)) == ROWS


def test_read_log_refuses_files_that_are_no_log(tmp_path):
    (tmp_path / "state.json").write_text("{}", encoding="utf-8")
    (tmp_path / "broken.jsonl").write_text('{"step": 1,\n{"step": 2}\n', encoding="utf-8")
    (tmp_path / "number.jsonl").write_text("5\n", encoding="utf-8")
    (tmp_path / "notes.txt").write_text("", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    for source, error, message in [
        (tmp_path / "none", FileNotFoundError, "none' does not exist; expected a folder of a run"),
        (tmp_path / "empty", FileNotFoundError, "holds no log; expected metrics.jsonl"),
        (tmp_path / "state.json", ValueError, "has no 'log_history'"),
        (tmp_path / "broken.jsonl", ValueError, "cannot be read as JSON"),
        (tmp_path / "number.jsonl", ValueError, "has a row without: 5; expected 'step'"),
        (tmp_path / "notes.txt", ValueError, "notes.txt'; expected a folder of a run"),
        ([], ValueError, "'run' holds no numbers"),
        ([{"step": 1, "reward": None}], ValueError, "holds no numbers"),
        ([{"reward": 1.0}], ValueError, "has a row without: {'reward': 1.0}; expected 'step'"),
        ([{"step": "1", "reward": 1}, {"step": 2, "reward": 1}], ValueError, "with the step '1'; expected a number"),
        ([{"step": math.nan, "reward": 1.0}], ValueError, "'run' has a row with the step nan; expected a number"),
        ([{"step": [1], "reward": 1.0}], ValueError, "has a row with the step \\[1\\]; expected a number"),
        ({"reward": 1.0}, TypeError, "source is of type dict; expected a folder of a run"),
    ]:
        with pytest.raises(error, match=message):
            read_log(source)


def test_read_log_names_a_settings_file_that_cannot_be_read(tmp_path):
    write(tmp_path / METRICS_FILE, ROWS)
    (tmp_path / SETTINGS_FILE).write_text('{"precision": ', encoding="utf-8")
    with pytest.raises(InputError, match=f"source is .*{SETTINGS_FILE}', which cannot be read as JSON"):
        read_log(tmp_path)


def log_of(settings: dict | None = None, **metrics: list) -> Log:
    """Make a log whose row of a step lacks the metrics that are None there."""
    num_steps = max(map(len, metrics.values()))
    rows = [{name: values[i] for name, values in metrics.items() if values[i] is not None} for i in range(num_steps)]
    return Log([{"step": i + 1} | row for i, row in enumerate(rows)], settings or {})


def test_a_trend_compares_the_first_quarter_with_the_last():
    values = trend(log_of(kl=[1.0, 3.0, 0.0, 0.0, 0.0, 0.0, 5.0, 7.0]), "kl")
    assert (values.first, values.last, values.change) == (2.0, 6.0, 4.0)
    differences = [2.0, -3.0, 0.0, 0.0, 0.0, 5.0, 2.0]
    mean = sum(differences) / 7
    std = math.sqrt(sum((difference - mean) ** 2 for difference in differences) / 7)
    assert values.standard_error == pytest.approx(std / math.sqrt(2))
    assert values.rises == (3 * values.standard_error < 4.0)
    assert str(values) == "kl goes from 2 in the first quarter to 6 in the last"


def test_a_trend_needs_eight_finite_values():
    with pytest.raises(MissingMetric, match="^kl$"):
        trend(log_of(kl=[1.0] * 7 + [math.nan]), "kl")


def test_a_reward_deviation_of_rounding_size_counts_as_equal_rewards():
    """Where the deviation of the rewards or the gradient is nearly 0, the rewards of every group are equal."""
    settings = {"reward_std": [1e-7] * 4 + [0.5] * 4, "grad_norm": [1.0] * 6 + [1e-4] * 2}
    values = trend(log_of(frac_reward_zero_std=[0.0] * 8, **settings), "frac_reward_zero_std")
    assert (values.first, values.last) == (1.0, 1.0)
    middle = trend(log_of(frac_reward_zero_std=[0.0] * 8, reward_std=[0.5] * 8), "frac_reward_zero_std")
    assert (middle.first, middle.last) == (0.0, 0.0)


def test_components_are_the_rewards_with_a_weight_and_enough_steps():
    metrics = {"rewards/a/mean": [0.9] * 8, "rewards/b/mean": [0.5] * 8, "rewards/c/mean": [1.0] * 7 + [None]}
    log = log_of(reward=[1.0] * 8, **metrics)
    assert reward_mean_metrics(log) == ["rewards/a/mean", "rewards/b/mean"]
    assert last_rewards(log) == [0.9, 0.5]
    assert not is_solved(log)
    only_a = log_of({"reward_weights": [1.0, 0.0, 0.5]}, reward=[1.0] * 8, **metrics)
    assert reward_mean_metrics(only_a) == ["rewards/a/mean"]
    assert is_solved(only_a)
    assert reward_mean_metrics(log_of(reward=[1.0] * 8)) == ["reward"]


def test_the_reward_of_an_environment_counts_beside_weighted_reward_functions():
    metrics = {"rewards/f/mean": [1.0] * 8, "rewards/Environment/mean": [0.1] * 8}
    log = log_of({"reward_weights": [1.0]}, reward=[1.1] * 8, **metrics)
    assert reward_mean_metrics(log) == [*metrics]
    assert not is_solved(log)


@pytest.mark.parametrize(
    ("settings", "updates"),
    [
        ({}, None),
        ({"num_iterations": 3}, 3),
        ({"num_iterations": 1, "per_device_train_batch_size": 4, "generation_batch_size": 16}, 4),
        (
            {
                "num_iterations": 2, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
                "generation_batch_size": 16,
            },
            4,
        ),
        ({"num_iterations": 2, "steps_per_generation": 5, "per_device_train_batch_size": 4}, 10),
        ({"num_iterations": 2, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}, 2),
    ],
)  # fmt: skip
def test_updates_per_rollout_follow_from_the_settings_of_either_trainer(settings, updates):
    assert updates_per_rollout(log_of(settings, reward=[1.0])) == updates


def test_the_median_decides_whether_a_metric_is_usually_above_a_limit():
    log = log_of(kl=[0.1, 0.3, 0.9])
    assert usually_above(log, "kl", 0.3) is None
    assert usually_above(log, "kl", 0.2) == "kl is 0.3 in the median step (at most 0.2 expected)"
    with pytest.raises(MissingMetric, match="^kl$"):
        usually_above(log_of(kl=[0.1, 0.3]), "kl", 0.2)


def test_conditions_have_the_names_and_the_order_of_the_rules():
    assert [rule.name for rule in RULES] == list(CONDITIONS) == [function.__name__ for function in CONDITIONS.values()]
