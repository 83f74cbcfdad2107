"""A plan fitted to memory keeps the rest; no model is the bundled one by its size alone; a command finds it once."""

from dataclasses import replace

import pytest
import torch

from grpo_lab import train as train_command
from grpo_lab.__main__ import main as grpo_lab_command
from grpo_lab.config.defaults import is_tiny
from grpo_lab.tasks import task_table
from grpo_lab.tasks.rows import THINK_SYSTEM_PROMPT
from grpo_lab.train.plan import make_plan
from tests.support.resuming import copy_folder


def test_plan_fitted_to_memory_keeps_the_tokenizer(checkpoint_name, tmp_path):
    arguments = ["--model", checkpoint_name, "--output_dir", str(tmp_path / "out"), "--num_generations", "2"]
    plan = make_plan(train_command.read_options(arguments))
    large_files = replace(plan.model_files, num_parameters=10**9)
    large_plan = replace(plan, model_files=large_files, device=torch.device("cpu"))
    fitted, lines = large_plan.fitted_to_memory()
    assert fitted is not large_plan and isinstance(lines, list)
    assert fitted.inputs.tokenizer is large_plan.inputs.tokenizer


def test_a_small_model_of_the_users_own_gets_the_system_prompt_that_its_reward_reads(checkpoint_name, tmp_path):
    words = ["--task", "word-problems", "--output_dir", str(tmp_path / "out"), "--num_generations", "2"]
    words += ["--max_completion_length", "8"]
    for model, expected in [("tiny", "tiny model has learnt"), (checkpoint_name, THINK_SYSTEM_PROMPT)]:
        plan = make_plan(train_command.read_options(["--model", model, *words]))
        lines = "\n".join(plan.description_lines())
        assert is_tiny(plan.num_parameters) and expected in lines
        assert ("tiny model has learnt" in lines) == (model == "tiny")


@pytest.mark.parametrize("command", ["train", "evaluate", "chat"])
def test_a_command_finds_its_model_once(command, checkpoint, bare_machine, capsys, monkeypatch):
    """A copy that lacks a file is passed over, and named once: not again by each function that reads the model."""
    monkeypatch.setitem(task_table.TASKS["sums"].default_counts, "train", 30)
    hub_id = "someone/some-model"
    copy_folder(checkpoint, bare_machine / "modelscope/models" / hub_id, without=("*.safetensors",))
    repo = bare_machine / "hub/models--someone--some-model"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs/main").write_text("c0ffee", encoding="utf-8")
    copy_folder(checkpoint, repo / "snapshots/c0ffee")
    words = {
        "train": ["--output_dir", str(bare_machine / "out"), "--num_generations", "2", "--generation_batch_size", "2",
                  "--max_completion_length", "2", "--max_steps", "1", "--disable_tqdm", "true"],
        "evaluate": ["--n", "1", "--num_generations", "1", "--max_completion_length", "2"],
        "chat": ["--task", "sums", "--max_new_tokens", "2"],
    }  # fmt: skip
    assert grpo_lab_command([command, "--model", hub_id, *words[command]]) == 0
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("passing over") == 1
    assert "found in the Hugging Face cache" in printed.out + printed.err
    assert command != "chat" or "policy: " not in printed.out, "the replies alone go to stdout"
