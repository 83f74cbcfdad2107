"""A plan that was fitted to memory keeps the rest of the plan, and no model is the bundled one by its size alone."""

from dataclasses import replace

import torch

from grpo_lab import train as train_command
from grpo_lab.tasks.rows import THINK_SYSTEM_PROMPT
from grpo_lab.train.plan import make_plan


def test_plan_fitted_to_memory_keeps_the_tokenizer(checkpoint_name, tmp_path):
    arguments = ["--model", checkpoint_name, "--output_dir", str(tmp_path / "out"), "--num_generations", "2"]
    plan = make_plan(train_command.read_options(arguments))
    large_plan = replace(plan, num_parameters=10**9, device=torch.device("cpu"))
    fitted, lines = large_plan.fitted_to_memory()
    assert fitted is not large_plan and isinstance(lines, list)
    assert fitted.inputs.tokenizer is large_plan.inputs.tokenizer


def test_a_small_model_of_the_users_own_gets_the_system_prompt_that_its_reward_reads(checkpoint_name, tmp_path):
    words = ["--task", "word-problems", "--output_dir", str(tmp_path / "out"), "--num_generations", "2"]
    words += ["--max_completion_length", "8"]
    for model, expected in [("tiny", "tiny model has learnt"), (checkpoint_name, THINK_SYSTEM_PROMPT)]:
        plan = make_plan(train_command.read_options(["--model", model, *words]))
        lines = "\n".join(plan.description_lines())
        assert plan.has_tiny_model and expected in lines
        assert ("tiny model has learnt" in lines) == (model == "tiny")
