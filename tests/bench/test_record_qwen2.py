"""The recorder of the runs at full size, at a small size: what it writes, and what it takes up again."""

import json

import pytest

from tests.support.scripts import load_script

record_qwen2 = load_script("notebooks/runs/record_qwen2.py")


def command(folder, *arguments):
    common = ["--shape", "small", "--fast", "--device", "cpu", "--output_dir", str(folder)]
    record_qwen2.main([*common, *arguments])
    return json.loads((folder / "qwen2_gpu.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_stages_and_runs_that_are_taken_up_again(tmp_path, monkeypatch):
    monkeypatch.setattr(record_qwen2, "MODES", ("fp32", "bf16-naive"))
    record = command(tmp_path, "--stage", "warmup")
    assert record["runs"] == [] and set(record["base"]) >= {"accuracy", "accuracy_ci95", "pass_at_k"}
    assert [len(losses) for losses in record["warm_up"]["loss"].values()] == [4, 2]
    assert "Qwen2-0.5B" not in record["what"]  # a small stand-in is not called by its name
    first = command(tmp_path, "--stage", "grpo", "--seeds", "3", "--minutes", "60")["runs"][0]
    record = command(tmp_path, "--stage", "grpo", "--seeds", "3", "4", "--minutes", "60")
    assert record["runs"][0] == first
    assert [(r["mode"], r["seed"]) for r in record["runs"]] == [("fp32", 3), ("bf16-naive", 3), ("fp32", 4)]
    for run in record["runs"]:
        assert all(len(values) == 2 for values in run["metrics"].values())
        phases = run["seconds_per_phase"]
        assert 0 < sum(phases[name] for name in record_qwen2.TIMES if name != "step_time") <= phases["step_time"]
        assert run["evaluation"]["n"] == 4 and 0 <= run["weights_moved"] <= 1
    assert {path.name for path in tmp_path.iterdir()} == {"qwen2_gpu.json", "small"}
    # Another base makes the old runs incomparable.
    assert command(tmp_path, "--stage", "warmup")["runs"] == []
