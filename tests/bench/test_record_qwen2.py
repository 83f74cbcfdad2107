"""The recorder of the runs at full size, at a small size: what it writes, and what it takes up again."""

import json

import pytest
import torch

from grpo_lab.models.shapes import random_policy
from tests.support.scripts import load_script

record_qwen2, warm_up, maker = (
    load_script(f"notebooks/runs/{name}.py") for name in ("record_qwen2", "warm_up", "make_tiny_qwen2")
)


@pytest.fixture(scope="module")
def tokenizer():
    return maker.build_tokenizer()


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


def test_the_loss_is_that_of_the_tiny_models_own_script(tokenizer):
    """Of the same documents: there from all logits, rows of all lengths together."""
    model = random_policy("small")
    documents = maker.batch(tokenizer, maker.Phase("skill", 1, 6, 1.0), warm_up.random.Random(0))
    loss = warm_up.mean_loss(model, documents)
    learnt = sum(label != -100 for _, labels in documents for label in labels)
    torch.testing.assert_close(loss, maker.summed_loss(model, documents) / learnt, rtol=1e-5, atol=1e-6)
    loss.backward()
    gradient = model.get_input_embeddings().weight.grad.clone()
    model.zero_grad()
    (maker.summed_loss(model, documents) / learnt).backward()
    torch.testing.assert_close(gradient, model.get_input_embeddings().weight.grad, rtol=1e-3, atol=1e-6)
