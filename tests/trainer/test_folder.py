"""What a run's folder refuses, what may change on resuming, and what is left in it at the end."""

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_lab.config import GRPOConfig
from grpo_lab.precision import PRECISIONS
from grpo_lab.trainer import Run, checkpoint, train
from grpo_lab.trainer.folder import RunFolder
from tests.support.resuming import assert_same_end, contents, files, metrics_in, real_run, run_until_killed
from tests.support.worlds import ROWS, letter_reward, make_config, make_exact, make_world, same_weights, weights
from tests.test_train import VALUES


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    return real_run(tmp_path_factory.mktemp("whole") / "out")


FREE = {"output_dir", "resume_from_checkpoint", "save_steps", "report_to", "disable_tqdm"}


def test_changed_settings_are_refused_by_name_and_nothing_is_lost(whole_run):
    folder, *_ = whole_run
    before = contents(folder)
    with pytest.raises(ValueError, match="learning_rate: was 0.01, is 0.02.*resume it unchanged"):
        real_run(folder, resume=True, learning_rate=0.02)
    with pytest.raises(ValueError, match=r"max_steps: was 5, is 6"):
        real_run(folder, resume=True, max_steps=6)
    assert contents(folder) == before


@pytest.mark.parametrize("name", VALUES)
def test_every_setting_but_those_that_change_no_number_is_compared(name):
    run = object.__new__(Run)
    run.config, run.optimizer = GRPOConfig(output_dir="out"), SimpleNamespace(precision=PRECISIONS["fp32"])
    folder = RunFolder(run.config, run.settings())
    before = folder.settings | {name: VALUES[name]}
    if name in FREE:
        folder.check_same_run(before)
    else:
        with pytest.raises(ValueError, match=f"config differs from that of the run in 'out' .*{name}: was"):
            folder.check_same_run(before)


def test_settings_that_change_no_number_may_change(whole_run, tmp_path):
    run_until_killed(tmp_path / "out", 3)
    end = real_run(tmp_path / "out", resume=True, save_steps=1, report_to="tensorboard", disable_tqdm=False)
    assert same_weights(weights(end[1]), weights(whole_run[1]))


def test_changed_settings_are_refused_before_the_first_checkpoint_too(tmp_path):
    run_until_killed(tmp_path / "out", 1)
    with pytest.raises(ValueError, match="seed: was 0, is 1"):
        real_run(tmp_path / "out", resume=True, seed=1)
    assert len(metrics_in(tmp_path / "out")) == 1


@pytest.mark.parametrize("call", [1, 3])
def test_a_folder_with_a_run_is_refused_without_resume(call, tmp_path):
    run_until_killed(tmp_path / "out", call)
    before = contents(tmp_path / "out")
    with pytest.raises(FileExistsError, match="holds a run already; choose another folder, or continue"):
        real_run(tmp_path / "out")
    assert contents(tmp_path / "out") == before


def test_a_folder_with_a_model_is_refused(tmp_path):
    """Or training `--model x --output_dir x` would write over the model it started from."""
    make_world()[0].save_pretrained(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(FileExistsError, match="holds a model already"):
        real_run(tmp_path)
    assert contents(tmp_path) == before


def test_a_run_that_failed_before_its_first_step_leaves_the_folder_free(tmp_path):
    model, tokenizer = make_world()
    config = make_config(output_dir=str(tmp_path))
    with pytest.raises(RuntimeError, match="reward function"):
        train(model, tokenizer, ROWS, lambda completions, **kwargs: 1 / 0, config)
    assert len(train(model, tokenizer, ROWS, letter_reward, config)) == 2


def test_resuming_what_never_started_starts(whole_run, tmp_path):
    assert_same_end(real_run(tmp_path / "out", resume=True), whole_run)


def test_resuming_what_is_complete_changes_nothing(whole_run):
    folder, model, history = whole_run
    before = contents(folder)
    again = real_run(folder, resume=True)
    assert same_weights(weights(again[1]), weights(model)) and again[2] == history
    assert contents(folder) == before


def test_weights_of_another_precision_are_refused(whole_run):
    with pytest.raises(ValueError, match=r"precision: was 'fp32', is 'bf16'"):
        real_run(whole_run[0], resume=True, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"model has torch.bfloat16 weights; expected torch.float32"):
        checkpoint.load(whole_run[0] / "checkpoint-5", make_world()[0].bfloat16())


def test_the_folder_and_its_checkpoint_are_normal_transformers_checkpoints(whole_run):
    folder, trained, _ = whole_run
    assert [path.name for path in folder.glob("*checkpoint*")] == ["checkpoint-5"]
    for path in (folder, folder / "checkpoint-5"):
        model = AutoModelForCausalLM.from_pretrained(path, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        assert same_weights(weights(model), weights(trained))
        assert tokenizer("abc")["input_ids"] == make_world()[1]("abc")["input_ids"] and tokenizer.chat_template
        assert model.generation_config.eos_token_id == trained.generation_config.eos_token_id
        assert not any(name.endswith((".bin", ".pt", ".pth", ".pkl")) for name in files(path)), "nothing is pickled"


def test_without_save_steps_only_the_end_is_saved(tmp_path):
    run_until_killed(tmp_path / "out", 4, save_steps=0)
    assert checkpoint.latest(tmp_path / "out") is None
    folder, *_ = real_run(tmp_path / "out", resume=True, save_steps=0)
    assert checkpoint.latest(folder).name == "checkpoint-5"


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, tokenizer = make_world()
    make_exact(model)
    train(model, tokenizer, ROWS, letter_reward, make_config(output_dir=None))
    assert files(tmp_path) == []


def test_tensorboard_shows_every_step_once(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run_until_killed(tmp_path / "out", 3, report_to="tensorboard")
    _, _, history = real_run(tmp_path / "out", resume=True, report_to="tensorboard")
    board = accumulator.EventAccumulator(str(tmp_path / "out" / "tensorboard")).Reload()
    assert [event.step for event in board.Scalars("reward")] == [1, 2, 3, 4, 5]
    assert [event.value for event in board.Scalars("loss")] == pytest.approx([m["loss"] for m in history])
