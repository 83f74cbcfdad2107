"""Killed at any point and resumed, a run ends with the same weights and metrics, and leaves nothing behind."""

import contextlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_lab import checkpoint
from grpo_lab.config import GRPOConfig
from grpo_lab.optim import GuardedOptimizer
from grpo_lab.run import Run
from grpo_lab.trainer import train
from tests import killed_run
from tests.axe import Axe, Killed
from tests.test_train_command import VALUES
from tests.worlds import ROWS, letter_reward, make_config, make_exact, make_world, same_weights, weights

TIMED = ("step_time", "tokens_per_second")


def without_times(history):
    return [{name: value for name, value in metrics.items() if name not in TIMED} for metrics in history]


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def metrics_in(folder: Path) -> list[dict]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def assert_same_end(one, other):
    """Each is a folder, its model and its history."""
    (folder, model, history), (want_folder, want_model, want_history) = one, other
    assert same_weights(weights(model), weights(want_model))
    assert without_times(history) == without_times(want_history) == without_times(metrics_in(folder))
    assert files(folder) == files(want_folder)
    tensors = [name for name in files(folder) if name.endswith(".safetensors")]
    assert any("optimizer" in name for name in tensors)
    for name in tensors:
        assert (folder / name).read_bytes() == (want_folder / name).read_bytes()


# --- before every single change to the file system ------------------------------------------------------------------


def cheap_run(folder: Path, resume: bool = True, at: int | None = None):
    """All of a run but the algorithm: the steps follow a gradient drawn at random and the distance to the reference."""
    model, tokenizer = make_world(num_hidden_layers=1)
    config = make_config(
        output_dir=str(folder),
        resume_from_checkpoint=resume,
        max_steps=4,
        save_steps=2,
        beta=0.1,
        ref_model_sync_steps=3,
    )
    with Axe(folder, at) as axe, Run(model, tokenizer, ROWS, config) as run:
        for step in run.steps():
            reference = run.reference_model(step).parameters()
            loss = sum(
                (p * (torch.randn_like(p) + p - r)).sum() for p, r in zip(model.parameters(), reference, strict=True)
            )
            run.optimizer.backward(loss)
            run.optimizer.step(run.learning_rate(step), loss.item())
            metrics = {"loss": loss.item(), "rows": str(run.rows_of_step(step))}
            run.record(step, metrics | {"reward": 0.5, "num_tokens": 5, "completions/mean_length": 1.0}, None)
    return axe.changes, (folder, model, run.history)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return cheap_run(tmp_path_factory.mktemp("undisturbed") / "out", resume=False)


def test_killed_before_any_change_to_the_file_system(undisturbed, tmp_path):
    changes, want = undisturbed
    assert changes > 50, "the axe sees every change"
    for at in range(changes):
        folder = tmp_path / str(at) / "out"
        with pytest.raises(Killed):
            cheap_run(folder, resume=False, at=at)
        assert_nothing_lost(folder)
        assert_same_end(cheap_run(folder)[1], want)


def assert_nothing_lost(folder):
    """The steps that a checkpoint stands on have their metrics, whole."""
    found = checkpoint.latest(folder)
    if found is not None:
        step = int(found.name.split("-")[1])
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[:step]
        assert [json.loads(line)["step"] for line in lines] == list(range(1, step + 1))


def test_killed_again_while_resuming(undisturbed, tmp_path):
    changes, want = undisturbed
    for first in (changes // 2, changes - 3):
        again = 0
        while True:
            folder = tmp_path / f"{first}-{again}" / "out"
            with pytest.raises(Killed):
                cheap_run(folder, resume=False, at=first)
            try:
                end = cheap_run(folder, at=again)[1]
            except Killed:
                assert_same_end(cheap_run(folder)[1], want)
                again += 1
            else:
                assert_same_end(end, want)
                break
            if again > 9:  # from here on it is an ordinary run again
                break


# --- real training --------------------------------------------------------------------------------------------------

EVERYTHING = {
    "max_steps": 5, "save_steps": 2, "beta": 0.1, "ref_model_sync_steps": 2, "num_iterations": 2,
    "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "entropy_coef": 0.01,
    "lr_scheduler_type": "linear", "warmup_steps": 3,
}  # fmt: skip


def real_run(folder, resume=False, world=0, dtype=None, callback=None, **settings):
    model, tokenizer = make_world(seed=world)
    if dtype is not None:
        model.to(dtype)
    config = make_config(output_dir=str(folder), resume_from_checkpoint=resume, **(EVERYTHING | settings))
    return Path(folder), model, train(model, tokenizer, ROWS, letter_reward, config, callback)


def kill_at(monkeypatch, owner, name, call, afterwards=False):
    """Die before, or right after, the given call of a function."""
    calls, function = iter(range(10**6)), getattr(owner, name)

    def deadly(*arguments, **keywords):
        last = next(calls) == call
        if last and not afterwards:
            raise Killed
        result = function(*arguments, **keywords)
        if last:
            raise Killed
        return result

    monkeypatch.setattr(owner, name, deadly)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    return real_run(tmp_path_factory.mktemp("whole") / "out")


@pytest.mark.parametrize(
    ("owner", "name", "call", "afterwards"),
    [
        (checkpoint, "append_metrics", 0, False),
        (checkpoint, "append_metrics", 3, False),
        (checkpoint, "append_metrics", 3, True),
        (checkpoint, "save_file", 1, False),
        (checkpoint, "save", 1, True),
        (GuardedOptimizer, "step", 9, True),
        (checkpoint, "save_model", 0, False),
    ],
    ids=lambda value: str(getattr(value, "__name__", value)),
)
def test_a_real_run_killed_between_its_parts(owner, name, call, afterwards, whole_run, tmp_path, monkeypatch):
    kill_at(monkeypatch, owner, name, call, afterwards)
    with pytest.raises(Killed):
        real_run(tmp_path / "out")
    monkeypatch.undo()
    assert_same_end(real_run(tmp_path / "out", resume=True), whole_run)


@pytest.mark.parametrize("settings", [{"dtype": torch.bfloat16}, {"dtype": torch.float16}, {"fp16": True}, {"bf16": True}], ids=str)  # fmt: skip  # noqa: E501
def test_half_precision_runs_resume_too(settings, tmp_path, monkeypatch):
    short = {"max_steps": 4, "num_iterations": 1} | settings
    want = real_run(tmp_path / "whole", **short)
    kill_at(monkeypatch, checkpoint, "append_metrics", 2)
    with pytest.raises(Killed):
        real_run(tmp_path / "out", **short)
    monkeypatch.undo()
    assert_same_end(real_run(tmp_path / "out", resume=True, **short), want)


def test_skipped_updates_and_the_loss_scale_are_remembered(tmp_path):
    def overflow(step, metrics):
        state["hook"].remove() if step == 2 else None

    state, folder = {}, tmp_path / "out"
    model, tokenizer = make_world()
    state["hook"] = model.lm_head.weight.register_hook(lambda gradient: gradient / 0)
    config = make_config(output_dir=str(folder), fp16=True, max_steps=2, save_steps=2)
    history = train(model, tokenizer, ROWS, letter_reward, config, overflow)
    assert [metrics["nonfinite_steps"] for metrics in history] == [1, 2]
    saved = json.loads((folder / "checkpoint-2" / "trainer_state.json").read_text(encoding="utf-8"))
    assert (saved["nonfinite_total"], saved["nonfinite_in_a_row"], saved["loss_scale"]) == (2, 0, 2.0**10)
    config.resume_from_checkpoint = True
    run = Run(model, tokenizer, ROWS, config)
    assert (run.optimizer.nonfinite_total, run.optimizer.loss_scale) == (2, 2.0**10)


def test_the_reference_comes_from_the_checkpoint_not_from_the_model_handed_in(tmp_path, monkeypatch):
    """Whoever resumes with the output folder's model would otherwise hold it to itself."""
    frozen = {"ref_model_sync_steps": None}
    want = real_run(tmp_path / "whole", **frozen)
    kill_at(monkeypatch, checkpoint, "append_metrics", 3)
    with pytest.raises(Killed):
        real_run(tmp_path / "out", **frozen)
    monkeypatch.undo()
    assert_same_end(real_run(tmp_path / "out", resume=True, world=5, **frozen), want)


# --- in another process, killed by the system -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole_worker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worker") / "out"
    return folder, *killed_run.continue_run(folder)


def start_worker(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.killed_run", str(folder), *arguments],
        cwd=Path(__file__).parent.parent,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": "."},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def test_killed_by_the_system_at_a_random_moment(whole_worker, tmp_path):
    chance = random.Random()
    steps, folder = chance.randint(1, 8), tmp_path / "out"
    worker = start_worker(folder)
    for line in worker.stdout:
        if int(line) == steps:
            break
    with contextlib.suppress(subprocess.TimeoutExpired):
        worker.wait(timeout=chance.uniform(0, 0.15))
    worker.kill()
    _, error = worker.communicate(timeout=60)
    assert worker.returncode != 0, f"it should have been killed after step {steps}: {error}"
    made = len(metrics_in_part(folder))
    assert steps <= made < killed_run.SETTINGS["max_steps"], error
    assert_same_end((folder, *killed_run.continue_run(folder)), whole_worker)


def metrics_in_part(folder):
    """The whole lines only."""
    return (folder / "metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]


@pytest.mark.parametrize("at", [58])
def test_a_process_that_ends_in_the_midst_of_a_checkpoint(at, whole_worker, tmp_path):
    folder = tmp_path / "out"
    worker = start_worker(folder, str(at))
    _, error = worker.communicate(timeout=120)
    assert worker.returncode == 9, error
    assert list(folder.glob("unfinished-checkpoint-*")) and checkpoint.latest(folder), "chosen to be in the midst"
    assert_same_end((folder, *killed_run.continue_run(folder)), whole_worker)


# --- what is refused ------------------------------------------------------------------------------------------------

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
    run.folder, run.config = Path("out"), GRPOConfig(output_dir="out")
    before = run.config.to_dict() | {name: VALUES[name]}
    if name in FREE:
        run._check_same_run(before)
    else:
        with pytest.raises(ValueError, match=f"config differs from that of the run in 'out' .*{name}: was"):
            run._check_same_run(before)


def test_settings_that_change_no_number_may_change(whole_run, tmp_path, monkeypatch):
    kill_at(monkeypatch, checkpoint, "append_metrics", 3)
    with pytest.raises(Killed):
        real_run(tmp_path / "out")
    monkeypatch.undo()
    end = real_run(tmp_path / "out", resume=True, save_steps=1, report_to="tensorboard", disable_tqdm=False)
    assert same_weights(weights(end[1]), weights(whole_run[1]))


def test_changed_settings_are_refused_before_the_first_checkpoint_too(tmp_path, monkeypatch):
    kill_at(monkeypatch, checkpoint, "append_metrics", 1)
    with pytest.raises(Killed):
        real_run(tmp_path / "out")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="seed: was 0, is 1"):
        real_run(tmp_path / "out", resume=True, seed=1)
    assert len(metrics_in(tmp_path / "out")) == 1


@pytest.mark.parametrize("call", [1, 3])
def test_a_folder_with_a_run_is_refused_without_resume(call, tmp_path, monkeypatch):
    kill_at(monkeypatch, checkpoint, "append_metrics", call)
    with pytest.raises(Killed):
        real_run(tmp_path / "out")
    monkeypatch.undo()
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
    with pytest.raises(ValueError, match=r"model has torch.bfloat16 weights, the checkpoint torch.float32"):
        real_run(whole_run[0], resume=True, dtype=torch.bfloat16)


# --- what is left ---------------------------------------------------------------------------------------------------


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


def test_without_save_steps_only_the_end_is_saved(tmp_path, monkeypatch):
    kill_at(monkeypatch, checkpoint, "append_metrics", 4)
    with pytest.raises(Killed):
        real_run(tmp_path / "out", save_steps=0)
    monkeypatch.undo()
    assert checkpoint.latest(tmp_path / "out") is None
    folder, *_ = real_run(tmp_path / "out", resume=True, save_steps=0)
    assert checkpoint.latest(folder).name == "checkpoint-5"


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, tokenizer = make_world()
    make_exact(model)
    train(model, tokenizer, ROWS, letter_reward, make_config(output_dir=None))
    assert files(tmp_path) == []


def test_tensorboard_shows_every_step_once(tmp_path, monkeypatch):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    kill_at(monkeypatch, checkpoint, "append_metrics", 3)
    with pytest.raises(Killed):
        real_run(tmp_path / "out", report_to="tensorboard")
    monkeypatch.undo()
    _, _, history = real_run(tmp_path / "out", resume=True, report_to="tensorboard")
    board = accumulator.EventAccumulator(str(tmp_path / "out" / "tensorboard")).Reload()
    assert [event.step for event in board.Scalars("reward")] == [1, 2, 3, 4, 5]
    assert [event.value for event in board.Scalars("loss")] == pytest.approx([m["loss"] for m in history])
