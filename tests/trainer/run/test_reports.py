"""The reports of a run: progress bar, trackers, warnings, and printed or recorded completions."""

import json
import re
from dataclasses import replace

import pytest
import torch

from grpo_lab.advantages import ADVANTAGES
from grpo_lab.advantages.estimators import AdvantageEstimator
from grpo_lab.trainer import collect, train
from grpo_lab.trainer.run.reports import best_and_worst, completion_records
from tests.support import small_policy, tool_policy
from tests.support.file_faults import Killed
from tests.support.small_policy import (
    ROWS,
    length_reward_or_none,
    letter_reward,
    make_config,
    make_policy,
    same_weights,
    train_small,
    weights,
)
from tests.support.tool_policy import make_tool_policy, tool_config


def no_reward(completions, **kwargs):
    return [None] * len(completions)


def test_completions_without_a_reward_are_shown_and_recorded_without_one(tmp_path):
    model, tokenizer = make_policy()
    settings = {"report_to": "tensorboard", "eval_steps": 2, "log_completions": True, "logging_steps": 1}
    config = make_config(output_dir=str(tmp_path / "out"), **settings)
    with pytest.warns(RuntimeWarning, match="their reward is NaN"):
        history = train(model, tokenizer, ROWS, no_reward, config, eval_dataset=ROWS)
    assert history[0]["reward"] is history[1]["eval/accuracy"] is None, "which a board does not take"
    assert history[0]["frac_reward_zero_std"] == 1.0 and same_weights(weights(model), weights(make_policy()[0]))
    (first, *_) = lines(tmp_path / "out")
    assert (first["reward"], first["rewards"], first["advantage"]) == (None, {"no_reward": None}, 0.0)


def test_the_progress_bar_is_short_and_an_evaluation_is_a_line_above_it(capsys):
    model, tokenizer = make_policy()
    config = make_config(max_steps=4, eval_steps=2, disable_tqdm=False, reward_weights=[1.0, 0.5])
    history = train(model, tokenizer, ROWS, [letter_reward, length_reward_or_none], config, eval_dataset=ROWS)
    frames = re.split("[\r\n]", capsys.readouterr().err)
    for step in (1, 2, 3, 4):
        (*_, frame) = (frame for frame in frames if f"{step}/4" in frame)  # the last one of the step
        assert f"reward={history[step - 1]['reward']:.3f}, length=" in frame and "length_reward_or_none" not in frame
    lines = [frame for frame in frames if "held-out" in frame]
    for line, metrics in zip(lines, (history[1], history[3]), strict=True):
        first, second = (metrics[f"eval/rewards/{name}/mean"] for name in ("letter_reward", "length_reward_or_none"))
        components = f"(letter_reward {first:.3f}, length_reward_or_none {second:.3f})"
        assert line.startswith(f"step {metrics['step']}: held-out reward {metrics['eval/reward']:.3f} {components}")


# --- a run without signal -----------------------------------------------------------------------------------------


def equal(completions, **kwargs):
    return [0.25] * len(completions)


def warnings_of(capsys) -> list[str]:
    return [line for line in re.split("[\r\n]", capsys.readouterr().err) if line.startswith("all rewards of ")]


@pytest.mark.parametrize(("max_steps", "counts"), [(4, []), (5, [5]), (7, [5, 7])])
def test_equal_rewards_are_reported_early_and_at_the_end(max_steps, counts, capsys):
    model, tokenizer = make_policy()
    history = train(model, tokenizer, ROWS, equal, make_config(max_steps=max_steps))
    assert all(metrics["frac_reward_zero_std"] == 1 for metrics in history)
    begins = [f"all rewards of {count} steps were equal within each group: no gradient; take " for count in counts]
    lines = warnings_of(capsys)
    assert len(lines) == len(begins) and all(map(str.startswith, lines, begins))


def test_a_group_of_unequal_rewards_or_an_advantage_without_baseline_counts_as_signal(capsys):
    model, tokenizer = make_policy()
    steps = []

    def differs_once(completions, **kwargs):
        steps.append(len(steps) == 2)
        return [float(steps[-1] and row == 0) for row in range(len(completions))]

    train(model, tokenizer, ROWS, differs_once, make_config(max_steps=6))
    train(model, tokenizer, ROWS, equal, make_config(max_steps=6, advantage="none"))
    assert warnings_of(capsys) == []


def test_equal_rewards_are_not_reported_if_an_advantage_of_the_users_is_not_zero(monkeypatch, capsys):
    model, tokenizer = make_policy()
    own_advantage = AdvantageEstimator(lambda batch, config: torch.ones_like(batch.rewards))
    monkeypatch.setitem(ADVANTAGES, "ones", own_advantage)
    for settings in ({}, {"beta": 0.1}):
        history = train(model, tokenizer, ROWS, equal, make_config(max_steps=5, advantage="ones", **settings))
        assert all(metrics["frac_reward_zero_std"] == 1 and metrics["grad_norm"] > 0 for metrics in history)
    assert warnings_of(capsys) == []


@pytest.mark.slow
def test_equal_rewards_of_episodes_are_reported_only_if_no_turn_has_a_gradient(capsys):
    def minus_environment(completions, environments, **kwargs):
        return [-environment.get_reward() for environment in environments]

    for advantage, count in (("turn", 0), ("group", 1)):
        config = tool_config(max_steps=5, advantage=advantage)
        rows, arguments = tool_policy.ROWS, {"environment_factory": tool_policy.Adder}
        history = train(*make_tool_policy(), rows, minus_environment, config, **arguments)
        assert all(metrics["frac_reward_zero_std"] == 1 for metrics in history)
        assert any(metrics["rows_without_gradient"] < 1 for metrics in history) == (advantage == "turn")
        assert len(warnings_of(capsys)) == count


def test_report_of_equal_rewards_names_another_term_with_a_gradient(capsys):
    model, tokenizer = make_policy()
    train(model, tokenizer, ROWS, equal, make_config(max_steps=5, beta=0.1))
    assert "no gradient but that of the KL term or the entropy bonus; take " in warnings_of(capsys)[0]


def test_steps_before_a_run_was_resumed_count(tmp_path, capsys):
    """A resumed run without a signal is reported at its end; a run with a signal is not reported."""
    for reward, counts in ((equal, [7]), (letter_reward, [])):
        settings = {"output_dir": str(tmp_path / reward.__name__), "save_steps": 1}
        for steps in (6, 7):
            model, tokenizer = make_policy()
            config = make_config(max_steps=steps, resume_from_checkpoint=steps == 7, **settings)
            capsys.readouterr()
            train(model, tokenizer, ROWS, reward, config)
        assert [int(line.split()[3]) for line in warnings_of(capsys)] == counts


# --- completions ---------------------------------------------------------------------------------------------------


def record(reward, completion="b", prompt="a"):
    return {"step": 7, "prompt": prompt, "completion": completion, "reward": reward}


def test_completion_record_has_all_fields():
    model, tokenizer = make_policy()
    config = make_config(reward_weights=[1.0, 0.5])
    torch.manual_seed(0)
    functions = [letter_reward, length_reward_or_none]
    experience, _ = collect(model, tokenizer, ROWS[:2], functions, config)
    records = completion_records(3, ROWS[:2], experience, ["letter_reward", "length_reward_or_none"])
    assert len(records) == 8 and json.loads(json.dumps(records)) == records, "nothing in it that JSON does not have"
    short = 0
    for row, record_of_row in enumerate(records):
        ids = experience.rollout.completion_ids[row][experience.rollout.mask[row]].tolist()
        letters, length = letter_reward(None, [ids])[0], None if len(ids) == 1 else float(len(ids))
        short += length is None
        assert record_of_row["rewards"] == {"letter_reward": letters, "length_reward_or_none": length}
        assert (record_of_row["step"], record_of_row["prompt"]) == (3, ROWS[row // 4]["prompt"])
        assert record_of_row["completion"] == experience.rollout.texts[row]
        assert record_of_row["reward"] == pytest.approx(letters + 0.5 * (length or 0))
        assert record_of_row["advantage"] == pytest.approx(experience.advantages[row].item())
    assert short, "drawn so that one function does not apply to a row"


def test_a_row_of_the_completions_table_is_one_line():
    text = 'one\ntwo\x1b[2J\r"\u202e' + "x" * 500
    unrewarded = record(0.0) | {"reward": None}  # no reward function applies: it is recorded and not ranked
    messages = [{"role": "user", "content": "1+1=?\n"}]
    (row,) = best_and_worst([unrewarded, record(1.0, text, messages)]).splitlines()[1:]
    assert row.startswith("   1.000  '1+1=?\\n' 'one\\ntwo\\x1b[2J\\r\"\\u202exxx") and row.endswith("x...'")
    assert len(row) < 130


def lines(folder):
    return [json.loads(line) for line in (folder / "completions.jsonl").read_text(encoding="utf-8").splitlines()]


def test_completions_are_printed_every_logging_steps_and_all_are_written_to_the_file(tmp_path, capsys):
    settings = {"log_completions": True, "logging_steps": 2, "disable_tqdm": False}
    _, history = train_small(output_dir=str(tmp_path), max_steps=5, **settings)
    records, captured = lines(tmp_path), capsys.readouterr()
    assert [record["step"] for record in records] == [2] * 8 + [4] * 8 + [5] * 8, "and the last"
    for step in (2, 4, 5):
        rewards = [record["reward"] for record in records if record["step"] == step]
        assert sum(rewards) / 8 == pytest.approx(history[step - 1]["reward"], rel=1e-5)
        start = captured.out.index(f"step {step}: the best and the worst of 8 completions")
        table = captured.out[start:].splitlines()[1:3]
        assert [row.split()[0] for row in table] == [f"{max(rewards):.3f}", f"{min(rewards):.3f}"]
    assert "5/5" in captured.err and "the worst" not in captured.err


@pytest.mark.parametrize(
    ("save_steps", "logging_steps"),
    [(2, 1), *(pytest.param(*pair, marks=pytest.mark.slow) for pair in ((2, 3), (4, 2)))],
)
def test_resuming_removes_completions_recorded_after_the_checkpoint(save_steps, logging_steps, tmp_path):
    """The first completions are written before the checkpoint, after it, or there is no checkpoint before the kill."""

    def kill(step, metrics):
        if step == 3:
            raise Killed

    settings = {"log_completions": True, "logging_steps": logging_steps, "max_steps": 5, "save_steps": save_steps}
    train_small(output_dir=str(tmp_path / "whole"), **settings)
    with pytest.raises(Killed):
        train_small(output_dir=str(tmp_path / "out"), callback=kill, **settings)
    train_small(output_dir=str(tmp_path / "out"), resume_from_checkpoint=True, **settings)
    assert lines(tmp_path / "out") == lines(tmp_path / "whole")
    assert len(lines(tmp_path / "out")) == len({*range(logging_steps, 6, logging_steps), 5}) * 8


def test_a_run_shorter_than_logging_steps_shows_the_completions_of_its_last_step(tmp_path, capsys):
    assert make_config().logging_steps == 10
    train_small(output_dir=str(tmp_path), max_steps=3, log_completions=True)
    assert [record["step"] for record in lines(tmp_path)] == [3] * 8
    assert "step 3: the best and the worst of 8 completions" in capsys.readouterr().out


def test_completion_record_has_the_mean_of_advantages_per_token():
    experience = small_policy.ragged_experience((3, 24, 1, 7))
    advantages = torch.where(experience.loss_mask, torch.randn(experience.loss_mask.shape), torch.nan)
    rewarded = replace(experience, rewards_per_func=experience.rewards[:, None])
    rows = [{"prompt": "a"}] * len(experience.rollout.prompt_ids)
    records = completion_records(1, rows, replace(rewarded, advantages=advantages), ["length"])
    for record, of_row, mask in zip(records, advantages, experience.loss_mask, strict=True):
        policy_advantages = [float(a) for a, counts in zip(of_row, mask, strict=True) if counts]
        assert record["advantage"] == pytest.approx(sum(policy_advantages) / max(1, len(policy_advantages)))
    assert "completions" in best_and_worst(records)
