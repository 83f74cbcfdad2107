"""The life of a run: what is restored and saved at its end, what it records of a step, and when a signal stops it.

After Ctrl-C or SIGTERM the step is finished and saved, the message says how to resume, and the result is the same.
"""

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from grpo_lab.base import Stopped
from grpo_lab.base.checks import RunError
from grpo_lab.trainer import train
from grpo_lab.trainer.run.folder import RESUME_INSTRUCTION, RunFolder
from grpo_lab.trainer.run.inputs import RunInputs
from grpo_lab.trainer.run.session import Session, StopSignals, open_session
from tests.support.resuming import assert_same_end, cheap_run, newest_checkpoint
from tests.support.small_policy import ROWS, letter_reward, make_config, make_policy, same_weights, weights


def make_session(folder=None, **settings):
    inputs = RunInputs(*make_policy(), ROWS, None, make_config(max_steps=2, **settings))
    return open_session(inputs, [], folder, saved_options={})


class Folder:
    """A folder of a run that notes what is appended to which file, and which model is saved."""

    def __init__(self, events: list):
        self.events = events

    def append(self, file: str, records: list[dict]) -> None:
        self.events.append((file, records))

    def save_model(self, model, tokenizer) -> None:
        self.events.append(("model", model))

    def describe_saved(self) -> str:
        return "All of it is saved."


def test_without_a_folder_nothing_is_saved_and_the_random_state_is_restored():
    start = torch.get_rng_state()
    with make_session() as session:
        assert session.history == [] and session.folder is None and session.is_open
        torch.rand(())
    assert torch.equal(torch.get_rng_state(), start) and not session.is_open


def test_the_trained_model_of_the_engine_is_saved_at_the_end():
    events: list = []
    with make_session(Folder(events)) as session:
        session.trained_model = "gathered"
        assert not events
    assert events == [("model", "gathered")]


def test_a_run_that_fails_saves_no_model_and_is_closed():
    events: list = []
    with pytest.raises(RuntimeError, match="broken"), make_session(Folder(events)) as session:
        raise RuntimeError("broken")
    assert not events and not session.is_open


def test_a_signal_stops_between_steps_and_at_the_end_after_the_model_is_saved():
    events: list = []
    handler = signal.getsignal(signal.SIGTERM)
    with (
        pytest.raises(Stopped, match="^Stopped after step 1 of 2 by SIGTERM. All of it is saved"),
        make_session(Folder(events)) as session,
    ):
        session.record({})
        assert not session.must_stop
        signal.raise_signal(signal.SIGTERM)
        assert session.must_stop
        session.stop()
    assert [name for name, _ in events] == ["metrics.jsonl"]
    events.clear()
    with (
        pytest.raises(Stopped, match="^Stopped after its last step by SIGTERM"),
        make_session(Folder(events)) as session,
    ):
        session.record({})
        session.record({})
        signal.raise_signal(signal.SIGTERM)
        assert not session.must_stop, "the run ends by itself"
    assert [name for name, _ in events] == ["metrics.jsonl", "metrics.jsonl", "model"]
    assert signal.getsignal(signal.SIGTERM) == handler


def make_open_session(events: list) -> Session:
    reports = SimpleNamespace(show=lambda metrics: events.append(("shown", metrics)))
    inputs = RunInputs(*make_policy(), ROWS, None, make_config())
    return Session(inputs, [], Folder(events), reports, StopSignals(None))


def test_a_step_is_in_the_history_and_the_file_before_it_is_shown():
    events: list = []
    session = make_open_session(events)
    session.start_step()
    metrics = session.record({"reward": 0.5})
    assert list(metrics) == ["step", "reward", "step_time"]
    assert metrics["step"] == 1
    assert 0 <= metrics["step_time"] < 60
    assert session.history == [metrics]
    assert events == [("metrics.jsonl", [metrics]), ("shown", metrics)]


@pytest.mark.parametrize("name", ["step", "step_time"])
def test_a_metric_that_has_a_name_of_the_session_is_refused_before_anything_is_written(name):
    events: list = []
    session = make_open_session(events)
    with pytest.raises(RunError, match=f"^metrics have '{name}' twice"):
        session.record({name: 0.5})
    assert session.history == []
    assert events == []


def test_completions_are_printed_and_written(capsys):
    events: list = []
    records = [
        {"step": 1, "prompt": "p", "completion": text, "reward": reward} for text, reward in [("a", 1), ("b", 0)]
    ]
    make_open_session(events).write_completions(records)
    assert events == [("completions.jsonl", records)]
    assert "the best and the worst of 2 completions" in capsys.readouterr().out


def test_metrics_file_is_written_only_by_the_session():
    """A second place that writes metrics.jsonl would drift from the first."""
    package = Path(__file__).parents[3] / "grpo_lab"
    files = [file for part in ("trainer", "train") for file in (package / part).rglob("*.py")]
    writers = {file.name for file in files if "append(METRICS_FILE" in file.read_text(encoding="utf-8")}
    assert writers == {"session.py"}


NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


def signal_at_step(number, last, times=1):
    """Return a callback that sends the signal to this process at the end of a step."""

    def callback(step, metrics):
        for _ in range(times if step == last else 0):
            signal.raise_signal(number)

    return callback


@pytest.mark.parametrize(
    ("number", "last"),
    [(signal.SIGINT, 3), *(pytest.param(signal.SIGTERM, last, marks=pytest.mark.slow) for last in (1, 2))],
)
def test_a_signal_saves_the_current_step_and_prints_how_to_resume(number, last, undisturbed, tmp_path, capsys):
    folder, before = tmp_path / "out", {name: signal.getsignal(name) for name in NAMES}
    with pytest.raises(Stopped) as stopped:
        cheap_run(folder, callback=signal_at_step(number, last))
    assert stopped.value.exit_code == 128 + number
    saved = (folder / f"checkpoint-{last}").as_posix()
    assert str(stopped.value) == (
        f"Stopped after step {last} of 4 by {NAMES[number]}. '{saved}' is saved. "
        f"Go on with {RESUME_INSTRUCTION} and everything else as it was."
    )
    assert f"{NAMES[number]}: finishing this step; a second one stops at once" in capsys.readouterr().err
    assert before == {name: signal.getsignal(name) for name in NAMES}, "handlers are put back"
    assert not (folder / "config.json").exists(), "there is no trained model yet"
    end = cheap_run(folder)
    assert f"Resumed at step {last} of 4" in capsys.readouterr().out
    if last == 3:  # the last two checkpoints stay: one more than without the signal
        (folder / "checkpoint-3").rename(tmp_path / "away")
        end = undisturbed[0], *end[1:]
    assert_same_end(end, undisturbed)


def test_a_signal_in_the_last_step_lets_the_run_end(undisturbed, tmp_path):
    with pytest.raises(Stopped, match=r"^Stopped after its last step by .*checkpoint-4' is saved"):
        cheap_run(tmp_path / "out", callback=signal_at_step(signal.SIGTERM, 4))
    assert (tmp_path / "out/model.safetensors").read_bytes() == (undisturbed[0] / "model.safetensors").read_bytes()
    assert_same_end(cheap_run(tmp_path / "out"), undisturbed)


def test_a_second_signal_stops_at_once_with_nothing_lost(undisturbed, tmp_path):
    with pytest.raises(Stopped, match=r"^Stopped at once, in the middle of a step, by .*checkpoint-2' is saved. Go on"):
        cheap_run(tmp_path / "out", callback=signal_at_step(signal.SIGTERM, 3, times=2))
    assert newest_checkpoint(tmp_path / "out") == "checkpoint-2"
    assert_same_end(cheap_run(tmp_path / "out"), undisturbed)


def test_a_signal_while_files_are_written_waits_for_them(undisturbed, tmp_path, monkeypatch):
    append = RunFolder.append

    def append_and_signal(self, name, records):
        if records[0]["step"] == 2:
            signal.raise_signal(signal.SIGINT)
        append(self, name, records)

    monkeypatch.setattr(RunFolder, "append", append_and_signal)
    with pytest.raises(Stopped, match="^Stopped after step 2 of 4"):
        cheap_run(tmp_path / "out")
    monkeypatch.undo()
    assert_same_end(cheap_run(tmp_path / "out"), undisturbed)


def test_without_a_folder_the_model_has_the_weights_of_the_finished_step():
    model, tokenizer = make_policy()
    expected = make_policy()[0]
    train(expected, tokenizer, ROWS, letter_reward, make_config(max_steps=2))
    with pytest.raises(KeyboardInterrupt, match="^Stopped after step 2 of 5 by Ctrl-C. Nothing is saved .output_dir"):
        train(model, tokenizer, ROWS, letter_reward, make_config(max_steps=5), signal_at_step(signal.SIGINT, 2))
    assert same_weights(weights(model), weights(expected))
