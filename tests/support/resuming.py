"""Make runs for the tests of resuming, kill them at a chosen point, and compare the ends of two runs."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from grpo_lab.trainer import Run, train
from grpo_lab.trainer.run.folder import MANIFEST_FILE, RunFolder
from tests.support.file_faults import FileFaults, Killed
from tests.support.small_policy import (
    ROWS,
    letter_reward,
    make_config,
    make_policy,
    same_weights,
    weights,
    without_times,
)

SETTINGS_WITH_EVERY_PART = {
    "max_steps": 5, "save_steps": 2, "beta": 0.1, "ref_model_sync_steps": 2, "num_iterations": 2,
    "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "entropy_coef": 0.01,
    "lr_scheduler_type": "linear", "warmup_steps": 3,
}  # fmt: skip
ONE_UPDATE = {"num_iterations": 1, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}  # per step
CHEAP_SETTINGS = {"max_steps": 4, "save_steps": 2, "beta": 0.1, "ref_model_sync_steps": 3}


def real_run(
    folder, resume=False, model_seed=0, dtype=None, callback=None, model_settings=None, held_out=None, **settings
):
    model, tokenizer = make_policy(seed=model_seed, **(model_settings or {}))
    if dtype is not None:
        model.to(dtype)
    config = make_config(output_dir=str(folder), resume_from_checkpoint=resume, **(SETTINGS_WITH_EVERY_PART | settings))
    return Path(folder), model, train(model, tokenizer, ROWS, letter_reward, config, callback, held_out)


def cheap_run(folder: Path, resume: bool | None = None, callback=None, reward=letter_reward, **settings):
    """Make a run without sampling: its gradient is random noise plus the difference to the reference.

    Args:
        folder: Folder of the run.
        resume: Whether the run resumes; None resumes if the folder has a run.
        callback: Function that is called after each step with the step and its metrics.
        reward: Reward function of the run, which is not called.
        **settings: Settings that replace those of `CHEAP_SETTINGS`.

    Returns:
        Folder, model and history.
    """
    model, tokenizer = make_policy(num_hidden_layers=1)
    resume = (Path(folder) / MANIFEST_FILE).is_file() if resume is None else resume
    config = make_config(output_dir=str(folder), resume_from_checkpoint=resume, **(CHEAP_SETTINGS | settings))
    with Run(model, tokenizer, ROWS, reward, config) as run:
        for step in run.steps():
            reference = run.reference_model(step).parameters()
            loss = sum(
                (p * (torch.randn_like(p) + p - r)).sum() for p, r in zip(model.parameters(), reference, strict=True)
            )
            run.optimizer.backward(loss)
            run.optimizer.step(run.learning_rate(step), loss.item())
            metrics = {"loss": loss.item(), "rows": str(run.data_rows_of_step(step))}
            run.record(step, metrics | {"reward": 0.5, "num_tokens": 5, "completions/mean_length": 1.0}, callback)
    return Path(folder), model, run.history


def cheap_run_until(folder: Path, last: int, **settings) -> Path:
    """Make a cheap run that is killed after step `last` and the checkpoint of this step, if there is one."""

    def kill(step, metrics):
        if step == last:
            raise Killed

    with pytest.raises(Killed):
        cheap_run(folder, callback=kill, **settings)
    return Path(folder)


def cheap_run_under(folder: Path, failing_change: int | None, fault: int | None = None, **settings):
    """Make a cheap run under `FileFaults`; return the number of changes to files, and the results of the run."""
    with FileFaults(folder, failing_change, fault=fault) as faults:
        results = cheap_run(folder, **settings)
    return faults.changes, results


def run_until_killed(folder, call, owner=RunFolder, name="append", afterwards=False, **settings):
    """Make a run that is killed before (or right after, if `afterwards`) call number `call` of a function."""
    calls, function = iter(range(10**6)), getattr(owner, name)

    def call_and_kill(*arguments, **keywords):
        last = next(calls) == call
        if last and not afterwards:
            raise Killed
        result = function(*arguments, **keywords)
        if last:
            raise Killed
        return result

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(owner, name, call_and_kill)
        real_run(folder, **settings)


def copy_folder(folder: Path, target: Path, without: tuple[str, ...] = ()) -> Path:
    return Path(shutil.copytree(folder, target, ignore=shutil.ignore_patterns(*without)))


def file_names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def file_contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def metrics_in(folder: Path) -> list[dict]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def newest_checkpoint(folder: Path) -> str | None:
    """Return the name of the complete checkpoint with the highest step, or None."""
    checkpoints = [path.name for path in folder.glob("checkpoint-*") if os.listdir(path)]
    return max(checkpoints, key=lambda name: int(name.split("-")[1]), default=None)


def assert_same_end(run, expected_run):
    """Check that two runs, each a folder, model and history, have the same files, weights and metrics."""
    (folder, model, history), (expected_folder, expected_model, expected_history) = run, expected_run
    assert same_weights(weights(model), weights(expected_model))
    assert without_times(history) == without_times(expected_history) == without_times(metrics_in(folder))
    assert file_names(folder) == file_names(expected_folder)
    tensors = [name for name in file_names(folder) if name.endswith(".safetensors")]
    assert any("optimizer" in name for name in tensors)
    for name in tensors:
        assert (folder / name).read_bytes() == (expected_folder / name).read_bytes()
