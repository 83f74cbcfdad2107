"""What the policy says, for people to read: the records of a step, the table of them, and the file."""

import io
import json
import sys

import pytest
import torch

from grpo_lab.trainer import collect
from grpo_lab.trainer.reports import best_and_worst, completion_records
from tests.support.axe import Killed
from tests.support.worlds import ROWS, letter_reward, make_config, make_world, none_for_some, run


def record(reward, completion="b", prompt="a", advantage=0.0):
    return {"step": 7, "prompt": prompt, "completion": completion, "reward": reward, "advantage": advantage}


def test_a_record_says_everything_about_a_completion():
    model, tokenizer = make_world()
    config = make_config(reward_weights=[1.0, 0.5])
    torch.manual_seed(0)
    functions = [letter_reward, none_for_some]
    experience, _ = collect(model, tokenizer, ROWS[:2], functions, config)
    records = completion_records(3, ROWS[:2], experience, ["letter_reward", "none_for_some"])
    assert len(records) == 8 and json.loads(json.dumps(records)) == records, "nothing in it that JSON does not have"
    short = 0
    for row, found in enumerate(records):
        ids = experience.rollout.completion_ids[row][experience.rollout.mask[row]].tolist()
        letters, length = letter_reward(None, [ids])[0], None if len(ids) == 1 else float(len(ids))
        short += length is None
        assert found["rewards"] == {"letter_reward": letters, "none_for_some": length}
        assert found == {
            "step": 3,
            "prompt": ROWS[row // 4]["prompt"],
            "completion": experience.rollout.texts[row],
            "rewards": found["rewards"],
            "reward": pytest.approx(letters + 0.5 * (length or 0)),
            "advantage": pytest.approx(experience.advantages[row].item()),
        }
    assert short, "drawn so that one function does not apply to a row"


def test_a_completion_to_which_nothing_applies_is_recorded_and_not_ranked():
    model, tokenizer = make_world()
    with pytest.warns(RuntimeWarning, match="their reward is NaN"):
        experience, _ = collect(model, tokenizer, ROWS[:2], lambda completions, **_: [None, *[1.0] * 7], make_config())
    records = completion_records(1, ROWS[:2], experience, ["lambda"])
    assert (records[0]["reward"], records[0]["rewards"], records[0]["advantage"]) == (None, {"lambda": None}, 0.0)
    assert len(best_and_worst(records, None).splitlines()) == 2 + 7


@pytest.mark.parametrize(
    ("count", "want", "which"),
    [
        (2, [4, 0], "the best and the worst"),
        (3, [4, 3, 0], "the best and the worst"),
        (1, [4], "the best"),
        (5, [4, 3, 2, 1, 0], "the best"),
        (99, [4, 3, 2, 1, 0], "the best"),
        (None, [4, 3, 2, 1, 0], "the best"),
        (0, [], "the best"),
    ],
)
def test_half_of_the_table_is_the_best_and_half_the_worst(count, want, which):
    table = best_and_worst([record(float(reward)) for reward in (3, 0, 4, 1, 2)], count)
    first, head, *rows = table.splitlines()
    assert first == f"step 7: {which} of 5 completions" and head.split() == [
        "reward",
        "advantage",
        "prompt,",
        "completion",
    ]
    assert [float(row.split()[0]) for row in rows] == want


def test_a_row_is_one_line_whatever_was_said():
    said = 'one\ntwo\x1b[2J\r"\u202e' + "x" * 500
    (row,) = best_and_worst([record(1.0, said, [{"role": "user", "content": "1+1=?\n"}], -0.5)], 1).splitlines()[2:]
    assert row.startswith("   1.000     -0.500  '1+1=?\\n' 'one\\ntwo\\x1b[2J\\r\"\\u202exxx") and row.endswith("x...'")
    assert len(row) < 130


def test_letters_that_the_terminal_lacks_are_spelt_out(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert best_and_worst([record(1.0, "答案 é")], 1).endswith("'\\u7b54\\u6848 \\xe9'")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert best_and_worst([record(1.0, "答案 é")], 1).endswith("'答案 é'")


def test_the_file_has_the_letters_themselves(tmp_path, capsys):
    rows = [{"prompt": "a", "answer": "b"}, {"prompt": "a答案", "answer": "é"}]
    run(rows=rows, output_dir=str(tmp_path), log_completions=True, logging_steps=1, max_steps=1)
    assert '"prompt": "a答案"' in (tmp_path / "completions.jsonl").read_text(encoding="utf-8")


def lines(folder):
    return [json.loads(line) for line in (folder / "completions.jsonl").read_text(encoding="utf-8").splitlines()]


def test_every_so_many_steps_a_table_is_printed_and_all_go_into_the_file(tmp_path, capsys):
    settings = {"log_completions": True, "logging_steps": 2, "num_completions_to_print": 2, "disable_tqdm": False}
    _, history = run(output_dir=str(tmp_path), max_steps=5, **settings)
    found, shown = lines(tmp_path), capsys.readouterr()
    assert [record["step"] for record in found] == [2] * 8 + [4] * 8
    for step in (2, 4):
        rewards = [record["reward"] for record in found if record["step"] == step]
        assert sum(rewards) / 8 == pytest.approx(history[step - 1]["reward"], rel=1e-5)
        table = shown.out[shown.out.index(f"step {step}: the best and the worst of 8 completions") :].splitlines()[2:4]
        assert [row.split()[0] for row in table] == [f"{max(rewards):.3f}", f"{min(rewards):.3f}"]
    assert "5/5" in shown.err and "advantage" not in shown.err


def test_without_a_folder_the_table_is_printed_alone(capsys):
    run(log_completions=True, logging_steps=1, num_completions_to_print=None, max_steps=1)
    assert len(capsys.readouterr().out.splitlines()) == 2 + 8


@pytest.mark.parametrize(
    ("save_steps", "logging_steps"),
    [(2, 3), (4, 2), pytest.param(1, 2, marks=pytest.mark.slow), pytest.param(2, 1, marks=pytest.mark.slow)],
)
def test_what_was_noted_after_the_last_checkpoint_is_struck_out_on_resuming(
    save_steps, logging_steps, tmp_path, capsys
):
    """The file begins before or after the checkpoint of step 2, or there is none."""

    def kill(step, metrics):
        if step == 3:
            raise Killed

    settings = {"log_completions": True, "logging_steps": logging_steps, "max_steps": 5, "save_steps": save_steps}
    run(output_dir=str(tmp_path / "whole"), **settings)
    with pytest.raises(Killed):
        run(output_dir=str(tmp_path / "out"), callback=kill, **settings)
    run(output_dir=str(tmp_path / "out"), resume_from_checkpoint=True, **settings)
    assert (
        lines(tmp_path / "out") == lines(tmp_path / "whole") and len(lines(tmp_path / "out")) == 5 // logging_steps * 8
    )


def test_it_may_be_asked_for_when_a_run_goes_on(tmp_path, capsys):
    run(output_dir=str(tmp_path), max_steps=3)
    settings = {"log_completions": True, "logging_steps": 1}
    run(output_dir=str(tmp_path), max_steps=5, resume_from_checkpoint=True, **settings)
    assert {record["step"] for record in lines(tmp_path)} == {4, 5}
