"""Every kind of log gives the same rows under the same names, and other sources are refused by name."""

import json
import math

import pytest

from grpo_lab.base.files import METRICS_FILE, SETTINGS_FILE
from grpo_lab.diagnose.logs import Log, read_log

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
        ({"reward": 1.0}, TypeError, "source is of type dict; expected a folder of a run"),
    ]:
        with pytest.raises(error, match=message):
            read_log(source)
