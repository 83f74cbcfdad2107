"""Ctrl-C and SIGTERM: the step is finished and saved, the message says how to resume, and the result is the same."""

import signal

import pytest

from grpo_lab.base import Stopped
from grpo_lab.trainer import train
from grpo_lab.trainer.run.folder import RunFolder
from grpo_lab.trainer.run.stopping import RESUME
from tests.support.resuming import assert_same_end, cheap_run, newest_checkpoint
from tests.support.small_policy import ROWS, letter_reward, make_config, make_policy, same_weights, weights

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
        f"Go on with {RESUME} and everything else as it was."
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
