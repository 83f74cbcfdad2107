"""What a run writes down of a step, for either engine: metrics with their frame, when evaluations are due, files."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo_lab.base.checks import RunError
from grpo_lab.trainer.run.step_log import StepLog
from tests.support.small_policy import make_config


class Folder:
    """A folder of a run that notes what is appended to which file."""

    def __init__(self, events: list):
        self.events = events

    def append(self, file: str, records: list[dict]) -> None:
        self.events.append((file, records))


def make_log(events: list, **settings) -> StepLog:
    reports = SimpleNamespace(show=lambda metrics: events.append(("shown", metrics)))
    return StepLog(make_config(**settings), [], Folder(events), reports)


def test_a_step_is_in_the_history_and_the_file_before_it_is_shown():
    events: list = []
    log = make_log(events)
    log.start_step()
    metrics = log.add({"reward": 0.5})
    assert list(metrics) == ["step", "reward", "step_time"]
    assert metrics["step"] == 1
    assert 0 <= metrics["step_time"] < 60
    assert log.history == [metrics]
    assert events == [("metrics.jsonl", [metrics]), ("shown", metrics)]


@pytest.mark.parametrize("name", ["step", "step_time"])
def test_a_metric_that_has_a_name_of_the_log_is_refused_before_anything_is_written(name):
    events: list = []
    log = make_log(events)
    with pytest.raises(RunError, match=f"^metrics have '{name}' twice"):
        log.add({name: 0.5})
    assert log.history == []
    assert events == []


def test_completions_are_printed_and_written(capsys):
    events: list = []
    records = [
        {"step": 1, "prompt": "p", "completion": text, "reward": reward} for text, reward in [("a", 1), ("b", 0)]
    ]
    make_log(events).write_completions(records)
    assert events == [("completions.jsonl", records)]
    assert "the best and the worst of 2 completions" in capsys.readouterr().out


def test_metrics_file_is_written_only_by_the_step_log():
    """A second place that writes metrics.jsonl would drift from the first."""
    package = Path(__file__).parents[3] / "grpo_lab"
    files = [file for part in ("trainer", "train") for file in (package / part).rglob("*.py")]
    writers = {file.name for file in files if "append(METRICS_FILE" in file.read_text(encoding="utf-8")}
    assert writers == {"step_log.py"}
