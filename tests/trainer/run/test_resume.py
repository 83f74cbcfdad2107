"""A run that is killed at any point and resumed has the same weights, metrics and files at the end."""

import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from grpo_lab.trainer import PolicyOptimizer, Run, train
from grpo_lab.trainer.optim import adamw_8bit
from grpo_lab.trainer.run import checkpoint
from grpo_lab.trainer.run.folder import RunFolder
from tests.support.file_faults import Killed
from tests.support.resuming import (
    ONE_UPDATE,
    assert_same_end,
    cheap_run,
    cheap_run_under,
    metrics_in,
    newest_checkpoint,
    real_run,
    run_until_killed,
)
from tests.support.small_policy import ROWS, letter_reward, make_config, make_policy


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 40])
def test_a_run_killed_before_any_change_to_the_file_system_resumes_to_the_bit(every, counted_run, tmp_path):
    changes, expected = counted_run
    assert changes > 100, "every change is counted"
    for change_index in range(0, changes, every):
        folder = tmp_path / str(change_index) / "out"
        with pytest.raises(Killed):
            cheap_run_under(folder, change_index)
        assert_nothing_lost(folder)
        assert_same_end(cheap_run(folder), expected)


def assert_nothing_lost(folder):
    """All steps up to the newest checkpoint have complete metrics, and there is a checkpoint from step 2 on."""
    path = folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    if checkpoint_name := newest_checkpoint(folder):
        step = int(checkpoint_name.split("-")[1])
        assert [json.loads(line)["step"] for line in lines[:step]] == list(range(1, step + 1))
    assert checkpoint_name or len(lines) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.6, 0.97])
def test_a_run_killed_again_while_resuming_resumes_to_the_bit(share, counted_run, tmp_path):
    changes, expected = counted_run
    for again in range(0, 1000, 2):
        folder = tmp_path / str(again) / "out"
        with pytest.raises(Killed):
            cheap_run_under(folder, int(changes * share))
        try:
            end = cheap_run_under(folder, again)[1]
        except Killed:
            assert_same_end(cheap_run(folder), expected)
        else:
            return assert_same_end(end, expected)


@pytest.mark.parametrize(
    ("owner", "name", "call", "afterwards"),
    [
        pytest.param(RunFolder, "append", 3, False, marks=pytest.mark.slow),
        pytest.param(RunFolder, "append", 0, False, marks=pytest.mark.slow),
        pytest.param(checkpoint, "save_file", 1, False, marks=pytest.mark.slow),
        pytest.param(checkpoint, "write", 1, True, marks=pytest.mark.slow),
        pytest.param(PolicyOptimizer, "step", 9, True, marks=pytest.mark.slow),
        pytest.param(checkpoint, "write_model", 0, False, marks=pytest.mark.slow),
    ],
    ids=lambda value: str(getattr(value, "__name__", value)),
)
def test_a_run_with_sampling_killed_between_its_phases_resumes_to_the_bit(
    owner, name, call, afterwards, whole_run, tmp_path
):
    run_until_killed(tmp_path / "out", call, owner, name, afterwards)
    assert_same_end(real_run(tmp_path / "out", resume=True), whole_run)


LARGE = {"hidden_size": 64, "intermediate_size": 128}  # parameters large enough to be quantised


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"fp16": True},
        {"bf16": True},
        {"dtype": torch.bfloat16, "precision": "bf16-naive"},
        {"dtype": torch.bfloat16},
        {"dtype": torch.bfloat16, "model_settings": LARGE, "max_steps": 3},
    ],
    ids=str,
)
def test_half_precision_runs_resume_to_the_bit(settings, tmp_path, monkeypatch):
    """The cases include 8-bit moments with several pieces per parameter, and stochastic rounding."""
    monkeypatch.setattr(adamw_8bit, "PIECE_SIZE", 2048)
    short = {"max_steps": 4, "num_iterations": 1} | settings
    expected = real_run(tmp_path / "whole", **short)
    if "model_settings" in settings:
        saved = load_file(tmp_path / "whole" / "checkpoint-3" / "optimizer.safetensors")
        assert sum(tensor.dtype == torch.uint8 for tensor in saved.values()) >= 24, "moments in 8 bits"
    run_until_killed(tmp_path / "out", 2, **short)
    assert_same_end(real_run(tmp_path / "out", resume=True, **short), expected)


def test_skipped_updates_and_the_loss_scale_are_remembered(tmp_path):
    def overflow(step, metrics):
        state["hook"].remove() if step == 2 else None

    state, folder = {}, tmp_path / "out"
    model, tokenizer = make_policy()
    state["hook"] = model.lm_head.weight.register_hook(lambda gradient: gradient / 0)
    config = make_config(output_dir=str(folder), fp16=True, max_steps=2, save_steps=2)
    history = train(model, tokenizer, ROWS, letter_reward, config, overflow)
    assert [metrics["nonfinite_steps"] for metrics in history] == [1, 2]
    saved = json.loads((folder / "checkpoint-2" / "trainer_state.json").read_text(encoding="utf-8"))
    texts = [path.read_text(encoding="utf-8") for path in folder.rglob("*.json")]
    for text in [*texts, *(folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]:
        json.loads(text, parse_constant=pytest.fail)  # NaN and infinity are no JSON
    assert metrics_in(folder)[1]["grad_norm"] is None and not math.isfinite(history[1]["grad_norm"])
    assert (saved["nonfinite_total"], saved["nonfinite_in_a_row"], saved["scaler"]["scale"]) == (2, 0, 2.0**10)
    with Run(model, tokenizer, ROWS, None, replace(config, resume_from_checkpoint=True)) as run:
        pass
    assert (run.optimizer.num_skipped_updates, run.optimizer.loss_scale) == (2, 2.0**10)


def test_the_reference_comes_from_the_checkpoint_not_from_the_model_handed_in(tmp_path):
    """Otherwise a run that is resumed with the model of its folder would compare this model with itself."""
    frozen = {"ref_model_sync_steps": None, "max_steps": 3, "save_steps": 1} | ONE_UPDATE
    expected = real_run(tmp_path / "whole", **frozen)
    run_until_killed(tmp_path / "out", 2, **frozen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.support.resuming.make_policy", lambda seed: (saved, make_policy()[1]))
        saved = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "checkpoint-2", local_files_only=True)
        for parameter in saved.parameters():  # since the alignment of the file's memory changes the rounding of sums
            parameter.data = parameter.data.clone()
        assert_same_end(real_run(tmp_path / "out", resume=True, **frozen), expected)
