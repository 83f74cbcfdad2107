"""What the tests of resuming share: a run that uses everything, ways to kill it, and what is the same at the end."""

import json
from pathlib import Path

import pytest

from grpo_lab.trainer import checkpoint, train
from tests.support.axe import Killed
from tests.support.worlds import ROWS, letter_reward, make_config, make_world, same_weights, weights, without_times

EVERYTHING = {
    "max_steps": 5, "save_steps": 2, "beta": 0.1, "ref_model_sync_steps": 2, "num_iterations": 2,
    "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "entropy_coef": 0.01,
    "lr_scheduler_type": "linear", "warmup_steps": 3,
}  # fmt: skip


def real_run(folder, resume=False, world=0, dtype=None, callback=None, world_settings=None, **settings):
    model, tokenizer = make_world(seed=world, **(world_settings or {}))
    if dtype is not None:
        model.to(dtype)
    config = make_config(output_dir=str(folder), resume_from_checkpoint=resume, **(EVERYTHING | settings))
    return Path(folder), model, train(model, tokenizer, ROWS, letter_reward, config, callback)


def run_until_killed(folder, call, owner=checkpoint, name="append_metrics", afterwards=False, **settings):
    """A run that dies before, or right after, the given call of a function."""
    calls, function = iter(range(10**6)), getattr(owner, name)

    def deadly(*arguments, **keywords):
        last = next(calls) == call
        if last and not afterwards:
            raise Killed
        result = function(*arguments, **keywords)
        if last:
            raise Killed
        return result

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(owner, name, deadly)
        real_run(folder, **settings)


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
