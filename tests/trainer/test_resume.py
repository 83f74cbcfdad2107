"""Killed at any point and resumed, a run ends with the same weights and metrics, and leaves nothing behind."""

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from grpo_lab.trainer import PolicyOptimizer, Run, checkpoint, optim_8bit, train
from tests.support import killed_run
from tests.support.axe import Axe, Killed
from tests.support.resuming import assert_same_end, real_run, run_until_killed
from tests.support.worlds import ROWS, letter_reward, make_config, make_world


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


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 9])
def test_killed_before_any_change_to_the_file_system(every, undisturbed, tmp_path):
    changes, want = undisturbed
    assert changes > 50, "the axe sees every change"
    for at in range(0, changes, every):
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


@pytest.mark.slow
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


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    return real_run(tmp_path_factory.mktemp("whole") / "out")


@pytest.mark.parametrize(
    ("owner", "name", "call", "afterwards"),
    [
        pytest.param(checkpoint, "append_metrics", 0, False, marks=pytest.mark.slow),
        (checkpoint, "append_metrics", 3, False),
        pytest.param(checkpoint, "append_metrics", 3, True, marks=pytest.mark.slow),
        (checkpoint, "save_file", 1, False),
        (checkpoint, "save", 1, True),
        pytest.param(PolicyOptimizer, "step", 9, True, marks=pytest.mark.slow),
        pytest.param(checkpoint, "save_model", 0, False, marks=pytest.mark.slow),
    ],
    ids=lambda value: str(getattr(value, "__name__", value)),
)
def test_a_real_run_killed_between_its_parts(owner, name, call, afterwards, whole_run, tmp_path):
    run_until_killed(tmp_path / "out", call, owner, name, afterwards)
    assert_same_end(real_run(tmp_path / "out", resume=True), whole_run)


@pytest.mark.parametrize(
    "settings",
    [
        {"fp16": True},
        pytest.param({"bf16": True}, marks=pytest.mark.slow),
        pytest.param({"dtype": torch.bfloat16}, marks=pytest.mark.slow),
        pytest.param({"dtype": torch.bfloat16, "precision": "bf16-naive"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_half_precision_runs_resume_too(settings, tmp_path):
    short = {"max_steps": 4, "num_iterations": 1} | settings
    want = real_run(tmp_path / "whole", **short)
    run_until_killed(tmp_path / "out", 2, **short)
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


def test_a_run_in_8_bits_resumes_bit_for_bit(tmp_path, monkeypatch):
    """With parameters large enough to be quantised, in several pieces; the rounding draws its noise anew."""
    monkeypatch.setattr(optim_8bit, "PIECE", 2048)
    sizes = {"hidden_size": 64, "intermediate_size": 128}
    short = {"max_steps": 3, "num_iterations": 1, "dtype": torch.bfloat16, "world_settings": sizes}
    want = real_run(tmp_path / "whole", **short)
    saved = load_file(tmp_path / "whole" / "checkpoint-3" / "optimizer.safetensors")
    assert sum(tensor.dtype == torch.uint8 for tensor in saved.values()) >= 24, "moments in 8 bits"
    run_until_killed(tmp_path / "out", 2, **short)
    assert_same_end(real_run(tmp_path / "out", resume=True, **short), want)


def test_the_reference_comes_from_the_checkpoint_not_from_the_model_handed_in(tmp_path):
    """Whoever resumes with the output folder's model would otherwise hold it to itself."""
    frozen = {"ref_model_sync_steps": None}
    want = real_run(tmp_path / "whole", **frozen)
    run_until_killed(tmp_path / "out", 3, **frozen)
    assert_same_end(real_run(tmp_path / "out", resume=True, world=5, **frozen), want)


@pytest.fixture(scope="module")
def whole_worker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worker") / "out"
    return folder, *killed_run.continue_run(folder)


def start_worker(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.killed_run", str(folder), *arguments],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": "."},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


@pytest.mark.slow
def test_killed_by_the_system_at_a_random_moment(whole_worker, tmp_path):
    """Some time in the step that follows the chosen one; the last step before it says how long a step takes."""
    chance = random.Random()
    steps, folder = chance.randint(2, 8), tmp_path / "out"
    worker, told = start_worker(folder), []
    while len(told) < steps:
        assert int(worker.stdout.readline()) == len(told) + 1
        told.append(time.perf_counter())
        print("on", file=worker.stdin, flush=True)
    with contextlib.suppress(subprocess.TimeoutExpired):
        worker.wait(timeout=chance.uniform(0, told[-1] - told[-2]))
    worker.kill()
    _, error = worker.communicate(timeout=600)
    assert worker.returncode != 0, f"it should have been killed after step {steps}: {error}"
    assert steps <= len(metrics_in_part(folder)) <= steps + 1, error
    assert_same_end((folder, *killed_run.continue_run(folder)), whole_worker)


def metrics_in_part(folder):
    """The whole lines only."""
    return (folder / "metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]


@pytest.mark.slow
@pytest.mark.parametrize("at", [58])
def test_a_process_that_ends_in_the_midst_of_a_checkpoint(at, whole_worker, tmp_path):
    folder = tmp_path / "out"
    worker = start_worker(folder, str(at))
    _, error = worker.communicate(timeout=600)
    assert worker.returncode == 9, error
    assert list(folder.glob("unfinished-checkpoint-*")) and checkpoint.latest(folder), "chosen to be in the midst"
    assert_same_end((folder, *killed_run.continue_run(folder)), whole_worker)
